//! `tollgate simulate --envoys`: limits that are divided over Envoys.

use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::{
    harness::TIMEOUT,
    program::PROGRAM,
    simulate::{ended, folder, reported, simulate},
};

const QUOTAS: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 20}
  - key: batch
    rate_limit: {unit: minute, requests_per_unit: 500, algorithm: fixed_window}
  - key: log
    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_log}
  - key: zone
    value: '*'
    share_threshold: true
    rate_limit:
      unit: second
      requests_per_unit: 100
      quotas: [{key: zone, value: a, weight: 3}]
";

#[tokio::test]
async fn rate_is_divided_over_envoys_by_demand() {
    let folder = folder(QUOTAS, &[]);
    let report = reported(folder.path(), "--envoys 150,60,5 --descriptor tenant=acme --duration 1m").await;
    let envoys = report["envoys"].as_array().unwrap();
    let refused: Vec<u64> = envoys.iter().map(|envoy| envoy["refused"].as_u64().unwrap()).collect();
    assert!(refused[0] > refused[1] && refused[1] > 100 && refused[2] < 20, "{refused:?}");
    let passed = report["passed"].as_u64().unwrap();
    assert!((5_400..=6_023).contains(&passed), "{passed}");
    let most = &report["most_passed"];
    assert_eq!((&most[0]["seconds"], &most[1]["seconds"]), (&1.into(), &10.into()));
    assert!(
        most[0]["requests"].as_u64() <= Some(123) && most[1]["requests"].as_u64() <= Some(1_023),
        "{most}"
    );
    let shares: Vec<u64> = envoys
        .iter()
        .map(|envoy| envoy["shares"].as_array().unwrap().last().unwrap().as_u64().unwrap())
        .collect();
    assert!(shares.iter().sum::<u64>() <= 100 && shares[2] >= 5, "{shares:?}");
    assert_eq!(envoys[0]["shares"].as_array().unwrap().len(), 12);
}

#[tokio::test]
async fn budget_is_divided_over_envoys_without_excess() {
    let folder = folder(QUOTAS, &[]);
    let report = reported(folder.path(), "--envoys 10x3 --descriptor batch=b --duration 59s").await;
    let passed = report["passed"].as_u64().unwrap();
    assert!((490..=500).contains(&passed), "{passed}");
    assert_eq!(report["envoys"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn table_of_envoys_shows_weights_by_value() {
    let folder = folder(QUOTAS, &[]);
    let arguments = "--envoys 200x2 --descriptor zone=a --descriptor zone=b --duration 2m";
    let (code, output, errors) = ended(simulate(folder.path(), arguments)).await;
    assert_eq!((code, &*errors), (Some(0), ""));
    assert!(output.starts_with("rules.yaml: 2 Envoys ask for 400 requests a second, for 120 s"), "{output}");
    assert!(output.contains("rule shop.zone_* at rules.yaml:14:7: 100 per second"), "{output}");
    let row = |bucket: &str| {
        let line = output.lines().find(|line| line.contains(bucket)).unwrap();
        line.split_whitespace().last().unwrap().parse::<u64>().unwrap()
    };
    assert!(row("zone=a").abs_diff(75) <= 5 && row("zone=b").abs_diff(25) <= 5, "{output}");
}

#[tokio::test]
async fn bucket_that_no_limit_divides_is_an_error() {
    let folder = folder(QUOTAS, &[]);
    for (arguments, wrong) in [
        ("--envoys 5", "--envoys needs --descriptor"),
        ("--envoys 5 --descriptor user=a", "user=a has no limit in domain `shop`, so everything passes"),
        ("--envoys 5 --descriptor log=a", "RLQS does not divide a limit with `algorithm: sliding_log`"),
        ("--envoys 5x3 --descriptor zone=a --descriptor zone=b", "2 --descriptor for 3 Envoys"),
        (
            "--envoys 5 --descriptor tenant=",
            "is no bucket: each pair is UTF-8, and has a value and a key of its own",
        ),
        ("--envoys 5x2 --descriptor tenant=a --descriptor tenant=b", "tenant=b has another counter"),
        ("--envoys 5x900,5x900 --descriptor tenant=a", "--envoys has 1800 Envoys"),
    ] {
        let (code, _, errors) = ended(simulate(folder.path(), arguments)).await;
        assert!(matches!(code, Some(1 | 64)) && errors.contains(wrong), "{arguments}: {errors}");
    }
}

#[tokio::test]
async fn check_warns_of_limits_without_quotas_only_if_asked() {
    let folder = folder(QUOTAS, &[]);
    let check = async |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.current_dir(folder.path()).args(["check", "rules.yaml"]).args(arguments).kill_on_drop(true);
        let output = timeout(TIMEOUT, command.output()).await.unwrap().unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(check(&[]).await.starts_with("good: 4 rules in 1 domain"));
    let warned = check(&["--rlqs"]).await;
    assert!(
        warned.starts_with("rules.yaml:9:17: RLQS does not divide a limit with `algorithm: sliding_log`"),
        "{warned}"
    );
    let report: Value = serde_json::from_str(&check(&["--rlqs", "--json"]).await).unwrap();
    assert_eq!(
        (&report["findings"][0]["level"], &report["findings"][0]["line"]),
        (&"warning".into(), &9.into())
    );
}
