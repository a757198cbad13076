use super::*;

const RULES: &str =
    "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: second, requests_per_unit: 1}}\n";

fn read_flags(flags: &str) -> Result<Flags, String> {
    let flags = format!("simulate rules.yaml {flags}");
    let matches = command().try_get_matches_from(flags.split_whitespace());
    read(&matches.map_err(|error| error.to_string())?, &Rules::parse("rules.yaml", RULES).unwrap())
}

#[test]
fn invalid_flag_is_refused_by_name() {
    for (flags, wrong) in [
        ("", "<INPUT|--generate <ARRIVALS>|--envoys <DEMANDS>>"),
        ("log --generate poisson", "--generate"),
        ("log --envoys 5", "--envoys"),
        ("--envoys 5x0", "--envoys"),
        ("--envoys fast", "--envoys"),
        ("--envoys 5 --suggest 99%", "--suggest"),
        ("log --format xml", "--format"),
        ("log --descriptor user", "key=value"),
        ("log --descriptor user={f|upper}", "`upper` is no filter"),
        ("log --suggest 0%", "--suggest"),
        ("log --suggest 101", "--suggest"),
        ("log --suggest-by keys", "--suggest-by"),
        ("log --memory-limit much", "--memory-limit"),
        ("--generate zipf", "--generate"),
        ("--generate poisson", "--descriptor"),
        ("--generate poisson --descriptor user={ip}", "no field `ip`"),
        ("--generate poisson --descriptor user={key} --rate 0", "--rate"),
        ("--generate poisson --descriptor user={key} --start soon", "--start"),
        ("--generate bursts --descriptor user={key} --burst-length 2m", "--burst-length"),
        ("--generate daily --descriptor user={key} --amplitude 2", "--amplitude"),
    ] {
        let error = read_flags(flags).err().unwrap_or_else(|| panic!("{flags} is accepted"));
        assert!(error.contains(wrong), "{flags}: {error}");
    }
}

#[test]
fn page_describes_every_flag() {
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/simulate.md"));
    for flag in command().get_arguments().filter_map(|argument| argument.get_long()) {
        assert!(page.contains(&format!("| `--{flag}")), "{flag}");
    }
}

#[test]
fn share_is_read_in_percent() {
    for (text, share) in [("99.9%", 0.999), ("100", 1.0), ("50 %", 0.5)] {
        let found = percent(text).unwrap();
        assert!((found - share).abs() < 1e-12, "{text}: {found}");
    }
}
