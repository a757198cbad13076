//! The door of each package: the names in its `lib.rs` that others may use. A change of a door is a change of this list.

use std::{collections::BTreeSet, fs, path::Path};

use crate::docs::PACKAGES;

const DOORS: [(&str, &str); 13] = [
    (
        "cluster",
        "Cluster ClusterError ClusterSettings ClusterStats ClusterView Departure Files LinkTrust MemberDeparture MemberId MemberState \
          MemberView PROTOCOL_VERSION SeedState TRUST_MISSING Trust Tuning fuzz link",
    ),
    (
        "counter",
        "algorithm descriptor each_apart files lock metrics packed_counter printable resilience time",
    ),
    (
        "limiter",
        "ActiveView Answer CheckError Checked Descriptor Entry FileSettings HoldError HoldId \
          HoldIdTooLong HoldTtlOutOfBounds Limiter LimiterError Location Operation PreparedDescriptor \
          Problem Problems Request RequestError Reservation SettleOutcome Settled Status limiter \
          shared_limiter tower",
    ),
    ("net", "accept certificates http_client private_file"),
    ("quota", "METRICS QuotaService QuotaSettings QuotaStream STREAM_PATH fuzz"),
    (
        "remote",
        "Admitted COUNTER_ONLY CounterCheck CounterChecks DecidedBy LATE_MAX LocalShare LocalShareBasis \
          MEMORY_DIVISOR OpenChecks Outcomes OwnLimits Remote RemoteExtent RemoteHoldError RemoteOutcome \
          RemoteOutcomes ReplicaShare SentId Submission SubmissionMode Submit answered refund_operations \
          refunded reserve_operations rounds settle_operations settled withdrawals",
    ),
    (
        "rules",
        "ActiveRules Allowance BackgroundPriority Contents DESCRIPTORS_MAX DecisionStats DecisionTotals DenialBody \
          DenialTemplate DenialValues DescriptorRef DisplayedLimit Documents Domain \
          FileSettings ForwardPolicy GroupedKey IpNet KeyedDomain KeyedRules LevelTrace LoadError \
          Location Match MatchKind MatchPosition NODES_MAX NetworkError NetworkGroup OnDenied \
          OnOwnerUnavailable OpenMatch Overlay OverlayFile OverlayReceiver OwnBounds OwnNumbers Problem Problems Quota \
          ReadDocuments ResourceLocation Rule RuleEvent RuleInput RuleLoader RuleOptions RuleOrigin \
          RuleStats Rules RulesStatus Series StoredLimit StoredTerms TreeNode Trial Unit Unknown \
          Variable Watcher address algorithm_keys compile composite file_watch fuzz hash_of json_schema load \
          load_trial nearest network_of rule_text set_idle_priority yaml",
    ),
    (
        "shared_store",
        "ConnectError PasswordError PasswordSource PasswordSources Passwords SharedStore \
          SharedStoreCounters SharedStoreSettings SharedStoreState SharedStoreStats StoreMode \
          StoreTlsFiles StoredValue StoredValues is_prefix is_url",
    ),
    (
        "sources",
        "ClientTlsFiles RuleLocation RuleSource RuleSourceKind RuleSourceSettings SourceSettings url xds",
    ),
    (
        "store",
        "BYTES_MIN Check CheckDecision CheckRole Checks Consumption CounterDetails CounterEvents CounterOperation CounterOutcomes CounterState \
          CounterView Decisions DryRun EncodedSlot Epoch Expired Grants \
          HOLDS_MAX HOLD_ID_BYTES_MAX HOLD_RETENTION HOLD_TTL_DEFAULT HOLD_TTL_MAX HOLD_TTL_MIN \
          HeldCounter HoldId HoldIdTooLong HoldOutcome HoldTerms HoldTtlOutOfBounds KeyHash Lead Leases \
          LimitOrigin LimitPart Memory MemoryReservation NotLocal OnExpiry OnFull OnRefusal OpenHold OpenHolds \
          OWN_LIMIT_TAG OWN_RECORD_MAX OperationOutcome OperationProperties OwnLimitChange OwnLimitOutcome OwnLimitPage \
          OwnLimitPosition \
          OwnLimitRefusal OwnLimitState OwnTerms Refusal Reserve \
          Room SLOTS SUBSCRIBERS_LISTED_MAX SWEEP_PARTS SWEEP_ROUND SettleOutcome Settled \
          Slot SlotChanges SlotCopy SlotData SlotOwnLimits StoreStats StoredSlot \
          SubscriberId SubscriberState Subscribers Turn UnknownId UsedHits decide_set divider each_hold_id \
          fuzz id_bytes read_own_limit refuses reserve",
    ),
    ("telemetry", "causes logs metrics sampler traces"),
    ("tools", "USAGE commands examples examples_of print run"),
    ("wire", "code_name descriptor_template descriptor_text finding json proto protobuf"),
];

/// The modules and items that a source makes public.
fn door(source: &str) -> BTreeSet<String> {
    let code: String = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut names = BTreeSet::new();
    for item in code.split(';') {
        if let Some((_, module)) = item.split_once("pub mod ") {
            names.insert(module.trim().to_owned());
        } else if let Some((_, path)) = item.split_once("pub use ") {
            let (_, last) = path.rsplit_once("::").unwrap();
            let last = path.split_once('{').map_or(last, |(_, group)| group.trim_end_matches('}'));
            let named = last.split(',').map(|name| name.rsplit(" as ").next().unwrap().trim());
            names.extend(named.filter(|name| !name.is_empty()).map(str::to_owned));
        }
    }
    for line in source.lines() {
        // A macro may make an enum.
        let made = || line.strip_prefix("    pub ").filter(|item| item.starts_with("enum "));
        let item = line.strip_prefix("pub ").or_else(made).and_then(|item| item.split_once(' '));
        if let Some(("fn" | "struct" | "enum" | "const" | "trait" | "type" | "static", rest)) = item {
            let name = rest.split(|letter: char| letter != '_' && !letter.is_alphanumeric()).next().unwrap();
            names.insert(name.to_owned());
        }
    }
    names
}

#[test]
fn doors_of_packages_are_those_listed() {
    let listed: BTreeSet<&str> = DOORS.iter().map(|(package, _)| *package).collect();
    assert_eq!(listed, BTreeSet::from(PACKAGES), "each package has a door");
    for (package, names) in DOORS {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(package).join("src/lib.rs");
        let found = door(&fs::read_to_string(source).unwrap());
        let names: BTreeSet<String> = names.split_whitespace().map(str::to_owned).collect();
        assert_eq!(found, names, "the door of {package}");
    }
}

#[test]
fn modules_and_items_of_a_door_are_found() {
    let source = "mod a;\n/// B.\npub mod b;\nuse a::No;\n#[cfg(x)]\npub use a::{One,\n    Two as Three};\npub use a::Four;\npub fn five() {\n    pub fn no() {}\n}\nnamed! {\n    pub enum Six {}\n}\n";
    assert_eq!(door(source), ["Four", "One", "Six", "Three", "b", "five"].map(str::to_owned).into());
}
