//! The documentation of settings matches the catalog.

use tollgate::settings::CATALOG;

#[test]
fn settings_page_documents_every_setting() {
    let page = include_str!("../../docs/settings.md");
    for setting in CATALOG {
        let default = format!("`{}`", setting.default);
        let row = format!(
            "| `{}` | `--{}` | `{}` | {default} | {} |",
            setting.name,
            setting.flag(),
            setting.variable(),
            setting.help
        );
        assert!(page.contains(&row), "docs/settings.md lacks this row:\n{row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, CATALOG.len(), "every row is a setting");
}
