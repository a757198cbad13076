//! The documentation of settings is true.

use tollgate::settings::CATALOG;

#[test]
fn every_setting_is_documented_with_its_flag_its_variable_and_its_default() {
    let page = include_str!("../../docs/settings.md");
    for setting in CATALOG {
        let default = setting.default.map_or("must be set".to_owned(), |default| format!("`{default}`"));
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
