//! `tollgate limits`: sets, exports and imports limits of their own.

use std::{fs, process::Stdio};

use tokio::{process::Command, time::timeout};
use tollgate_wire::proto::tollgate::v1::answer::Verdict;

use crate::{
    api_v1::own_limits::{RULES, charge, get, token},
    harness::{Service, TIMEOUT, until},
    metrics::{page, value},
    program::PROGRAM,
};

#[tokio::test]
async fn limits_command_sets_exports_and_imports_limits() {
    let (folder, file) = token();
    let service = Service::start_with(RULES, &[("admin.token_file", &file)]).await;
    let to = service.addresses.http.to_string();
    let limits = async |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("limits").args(arguments).args(["--to", &to, "--token-file", &file]).kill_on_drop(true);
        let output = timeout(TIMEOUT, command.output()).await.unwrap().unwrap();
        let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code().unwrap(), out, error)
    };
    let (code, out, _) =
        limits(&["set", "shop", "user=ann", "--requests-per-unit", "9", "--note", "gold"]).await;
    assert_eq!(code, 0);
    assert!(out.starts_with("shop user=ann: requests_per_unit 9, gold, version "), "{out}");
    assert_eq!(charge(&service, "ann", 4).await.verdict(), Verdict::Allowed);
    let (code, out, error) = limits(&["set", "shop", "user=ann", "--requests-per-unit", "5000"]).await;
    assert_eq!((code, &*out), (1, ""));
    assert!(error.contains("the `own` of the rule allows 1000"), "{error}");
    limits(&["set", "shop", "user=bob", "--unlimited"]).await;
    let (_, exported, _) = limits(&["export"]).await;
    assert_eq!(exported.lines().count(), 2, "{exported}");
    assert_eq!(limits(&["clear", "shop", "user=ann"]).await.0, 0);
    assert_eq!(limits(&["clear", "shop", "user=bob"]).await.0, 0);
    assert_eq!(limits(&["list"]).await.1.trim(), "");
    let saved = folder.path().join("limits.jsonl");
    let path = saved.to_str().unwrap();
    fs::write(&saved, format!("{exported}{{\"domain\": \"shop\"")).unwrap();
    let (code, _, error) = limits(&["import", path]).await;
    assert_eq!(code, 1);
    assert!(error.contains("limits.jsonl:3: "), "{error}");
    assert_eq!(limits(&["list"]).await.1.trim(), "", "nothing is set");
    fs::write(&saved, &exported).unwrap();
    assert_eq!(
        limits(&["import", path, "--dry-run"]).await.1.trim(),
        format!("2 limits of {path} are valid; nothing is set")
    );
    assert_eq!(limits(&["list"]).await.1.trim(), "");
    fs::write(&saved, exported.replace("1000", "1").replace("\"9\"", "\"1001\"")).unwrap();
    for flags in [&[][..], &["--dry-run"]] {
        let (code, out, error) = limits(&[&["import", path][..], flags].concat()).await;
        assert_eq!((code, &*out), (1, ""));
        assert!(error.contains("the `own` of the rule allows 1000; nothing is set"), "{error}");
    }
    fs::write(&saved, &exported).unwrap();
    for _again in 0..2 {
        assert_eq!(limits(&["import", path]).await.1.trim(), "2 limits are set");
    }
    assert_eq!(limits(&["list", "shop", "user=ann"]).await.1.lines().count(), 1);
    assert_eq!(limits(&["list"]).await.1.lines().count(), 2);
    let (_, table, _) = limits(&["export", "--format", "csv"]).await;
    let (header, rows) = table.split_once('\n').unwrap();
    assert!(header.starts_with("domain,descriptor,requests_per_unit,"), "{header}");
    assert!(rows.contains("shop,user=ann,9,") && rows.contains(",gold,"), "{rows}");
    for user in ["user=ann", "user=bob"] {
        assert_eq!(limits(&["clear", "shop", user]).await.0, 0);
    }
    fs::write(&saved, &table).unwrap();
    assert_eq!(limits(&["import", path]).await.1.trim(), "2 limits are set");
    assert_eq!(limits(&["export", "--format", "csv"]).await.1, table);
}

#[tokio::test]
async fn import_beyond_the_memory_of_limits_names_line_and_setting() {
    const ROWS: usize = 2_000;
    let (folder, file) = token();
    let settings = [("admin.token_file", &*file), ("store.memory_limit", "2MiB")];
    let service = Service::start_with(RULES, &settings).await;
    let rows: String = (0..ROWS).map(|user| format!("shop,user={user},9\n")).collect();
    let path = folder.path().join("limits.csv");
    fs::write(&path, format!("domain,descriptor,requests_per_unit\n{rows}")).unwrap();
    let mut command = Command::new(PROGRAM);
    let to = service.addresses.http.to_string();
    command.args(["limits", "import", path.to_str().unwrap(), "--to", &to, "--token-file", &file]);
    let output = timeout(TIMEOUT, command.kill_on_drop(true).output()).await.unwrap().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    let (_, rest) = error.split_once("limits.csv:").unwrap_or_else(|| panic!("{error}"));
    let (line, why) = rest.split_once(": ").unwrap();
    let expected =
        "limits of their own take at most an eighth of store.memory_limit: raise it; the lines before ";
    assert!(why.starts_with(expected), "{error}");
    let line: usize = line.parse().unwrap();
    // The first user is on the second line.
    let [last, refused] = [line - 3, line - 2].map(|user| user.to_string());
    let limits = get(&service, &[&last, &refused]).await;
    assert!(limits[0].limit.is_some() && limits[1].limit.is_none(), "{error} {limits:?}");
    let page = page(&service).await;
    assert!(value(&page, "tollgate_own_limit_changes_total{result=\"no_memory\"}") > 0.0);
    assert!(value(&page, "tollgate_own_limit_bytes") <= f64::from(2 << 20) / 8.0);
}

#[tokio::test]
async fn interrupted_import_says_up_to_which_line_limits_are_set() {
    const ROWS: usize = 8_000;
    let (folder, file) = token();
    let service = Service::start_with(RULES, &[("admin.token_file", &file)]).await;
    let rows: String = (0..ROWS).map(|user| format!("shop,user={user},9\n")).collect();
    let path = folder.path().join("limits.csv");
    fs::write(&path, format!("domain,descriptor,requests_per_unit\n{rows}shop,user=x,1001\n")).unwrap();
    let import = || {
        let mut command = Command::new(PROGRAM);
        let to = service.addresses.http.to_string();
        command.args(["limits", "import", path.to_str().unwrap(), "--to", &to, "--token-file", &file]);
        command.stderr(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
    };
    let output = timeout(TIMEOUT, import().wait_with_output()).await.unwrap().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&format!("limits.csv:{}: ", ROWS + 2)), "{error}");
    assert_eq!(get(&service, &["0"]).await[0].limit, None, "one bad line sets nothing");
    fs::write(&path, format!("domain,descriptor,requests_per_unit\n{rows}")).unwrap();
    let importing = import();
    // One of the second batch.
    until(async || get(&service, &["1500"]).await[0].limit.clone()).await;
    let process = importing.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &process]).status().await.unwrap().success());
    let output = timeout(TIMEOUT, importing.wait_with_output()).await.unwrap().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    let (_, line) = error.split_once("interrupted; the lines before ").unwrap_or_else(|| panic!("{error}"));
    let line: usize = line.split(' ').next().unwrap().parse().unwrap();
    let last = (line - 3).to_string();
    assert!(get(&service, &[&last]).await[0].limit.is_some(), "{error}");
    assert_eq!(get(&service, &[&(ROWS - 1).to_string()]).await[0].limit, None, "{error}");
}
