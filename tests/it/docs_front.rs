//! Checks of what a reader sees first: README.md, the comparison with other limiters, and the table of performance.

use std::{collections::BTreeMap, fs, path::Path};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const WORDS_MAX: usize = 1_150;

fn read(page: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(page)).unwrap()
}

/// Text without the targets of its links.
fn without_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |shown, part| shown + "]" + part.split_once(')').unwrap().1)
}

/// The section below a heading.
fn section<'t>(page: &'t str, heading: &str) -> &'t str {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    rest.split("\n## ").next().unwrap()
}

/// The cells of each row of the first table of a text, without its heading.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().skip_while(|line| !line.starts_with('|'));
    let lines = lines.take_while(|line| line.starts_with('|')).skip(2);
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// What stands between two marks of a page.
fn marked<'t>(page: &'t str, name: &str) -> &'t str {
    let (_, rest) = page.split_once(&format!("<!-- {name}: begin -->")).unwrap();
    rest.split_once(&format!("<!-- {name}: end -->")).unwrap().0
}

#[test]
fn readme_states_the_times_of_the_table_for_contributors() {
    let (page, readme) = (read("docs/dev/contributing.md"), read("README.md"));
    let table = rows(section(&page, "How long it takes"));
    let time = |what: &str| table.iter().find(|row| row[0] == what).unwrap()[1];
    let first = time("the first command of README.md, until the service answers");
    assert!(readme.contains(&format!("the first build took {first} on two cores")), "{first}");
    // Whole minutes, upwards.
    let run = time("`tests/run`");
    let (minutes, seconds) = run.split_once(" min").unwrap();
    let minutes = minutes.parse::<u32>().unwrap() + u32::from(!seconds.is_empty());
    assert!(readme.contains(&format!("Python 3.10 and about {minutes} minutes")), "{run}");
}

#[test]
fn readme_has_at_most_1150_words() {
    let words = read("README.md").split_whitespace().count();
    assert!(words <= WORDS_MAX, "{words} words");
}

#[test]
fn readme_answers_questions_in_order() {
    let page = read("README.md");
    let headings: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let wanted = [
        "Try it",
        "A cluster in sixty seconds",
        "Why",
        "Beside others",
        "Performance",
        "Three ways to deploy",
        "Four doors",
        "What is missing",
        "Where to go",
    ];
    assert!(page.split("\n## ").next().unwrap().contains("**No release yet**"));
    assert_eq!(headings, wanted);
    assert_eq!(rows(section(&page, "Beside others")).len(), 8);
    assert_eq!(rows(section(&page, "Performance")).len(), 4);
    assert_eq!(rows(section(&page, "Where to go")).len(), 10);
}

#[test]
fn rule_file_of_readme_is_the_file_of_its_commands() {
    let page = read("README.md");
    let (_, block) = page.split_once("```yaml\n").unwrap();
    let block = block.split_once("```").unwrap().0;
    assert_eq!(block, read("examples/rules.yaml"));
    assert_eq!(block.lines().count(), 10);
}

#[test]
fn each_cell_of_comparison_has_its_proof() {
    let page = read("docs/comparison.md");
    let rows = rows(section(&page, "Twelve questions"));
    assert_eq!(rows.len(), 12);
    for row in rows {
        assert_eq!(row.len(), 7, "{row:?}");
        for cell in &row[1..] {
            assert!(cell.contains("](") || cell.contains("]["), "{}: no proof of {cell}", row[0]);
        }
    }
    for name in page.split("][").skip(1).map(|rest| rest.split_once(']').unwrap().0) {
        assert!(page.contains(&format!("\n[{name}]: https://")), "no link is called {name}");
    }
}

/// A number as the page writes it: `264,000`.
fn number(text: &str) -> f64 {
    text.trim_matches('*').replace(',', "").parse().unwrap()
}

/// `value` with three digits.
fn three_digits(value: f64) -> f64 {
    let unit = 10_f64.powf(value.log10().floor() - 2.0);
    (value / unit).round() * unit
}

#[test]
fn table_for_users_follows_from_measured_tables() {
    let (users_page, page) = (read("docs/performance.md"), read("benches/README.md"));
    fn by_name<'p>(page: &'p str, name: &str) -> BTreeMap<&'p str, Vec<&'p str>> {
        rows(marked(page, name)).into_iter().map(|row| (row[0], row)).collect()
    }
    let users = by_name(&users_page, "summary");
    let (alone, shared) = (by_name(&page, "side by side"), by_name(&page, "shared store"));
    // Of `14.78 + 6.77 = 21.55` the sum.
    let microseconds = |cell: &str| number(cell.rsplit("= ").next().unwrap());
    let a_second = |row: &str, column: usize, cell: &str| {
        let stated = number(users[row][column]);
        let measured = three_digits(1e6 / microseconds(cell));
        assert!((stated - measured).abs() < 1.0, "{row}: {stated}, measured {measured}");
    };
    // The table for users has no column for targets.
    for column in 1..=3 {
        let cell = alone["CPU a decision, 4x50, one key (us)"][column + 1];
        a_second("Requests a second that one core decides, one key", column, cell);
        let open = microseconds(alone["CPU a decision, 5,000/s over 16 connections (us)"][column + 1]);
        let share = users["CPU at 5,000 requests a second, of one core"][column].trim_end_matches(" %");
        assert!((number(share) - open * 0.5).abs() < 0.06, "{share} %, measured {open} us");
        for (row, measured, unit) in [
            ("Memory of an idle connection", "An idle connection (KB)", "KB"),
            ("Memory of a process without requests", "An empty process (MiB)", "MiB"),
        ] {
            let stated = users[row][column].trim_matches('*');
            assert_eq!(stated, format!("{} {unit}", alone[measured][column + 1]));
        }
    }
    a_second("The same, a million keys", 1, alone["CPU a decision, 4x50, 1M keys (us)"][2]);
    for (column, measured) in [(1, 1), (4, 2)] {
        let cell = shared["4x50, 100,000 keys"][measured];
        a_second("The same, counters in Redis, 100,000 keys", column, cell);
    }
    // p50, p99 and p99.9; a cluster is another thing than a single server.
    let direct = by_name(&page, "latency direct");
    for (column, server) in [(1, "Tollgate"), (4, "ratelimit + Redis")] {
        let stated = users["Latency at 10,000 requests a second, p99.9"][column];
        let measured = direct[server][2].rsplit("/ ").next().unwrap();
        assert_eq!(stated.trim_end_matches(" ms"), measured, "{server}");
    }
    let resident = alone["Bytes a counter, 1M keys, resident"][2];
    assert_eq!(users["Memory for a million keys, resident"][1], format!("{resident} MB"));
}

/// The numbers of a text as they are written, without the targets of its links.
fn numbers(text: &str) -> Vec<String> {
    let text = without_targets(text);
    let numbers = text.split(|letter: char| !letter.is_ascii_digit() && letter != '.');
    numbers.map(|number| number.trim_matches('.').to_owned()).filter(|number| !number.is_empty()).collect()
}

/// Each of these values, with as many decimal places as the number that states it.
fn as_stated(stated: &[String], values: &[f64]) -> Vec<String> {
    let places = |number: &String| number.split_once('.').map_or(0, |(_, places)| places.len());
    stated.iter().zip(values).map(|(number, value)| format!("{value:.*}", places(number))).collect()
}

#[test]
fn each_page_states_the_measured_cpu_of_a_decision() {
    let (readme, page) = (read("README.md"), read("benches/README.md"));
    let row = |table: &str, name: &str| {
        let row = rows(marked(&page, table)).into_iter().find(|row| row[0] == name).unwrap();
        row.into_iter().map(|cell| cell.rsplit("= ").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let alone = row("side by side", "CPU a decision, 4x50, one key (us)");
    let [tollgate, throttlecrab, gubernator, limitador] = [2, 3, 4, 5].map(|column| number(&alone[column]));
    let shared = row("shared store", "4x50, one key");
    let [in_redis, ratelimit] = [1, 2].map(|column| number(&shared[column]));

    let cheap = readme.lines().find(|line| line.starts_with("- **Cheap.**")).unwrap();
    let comparison = read("docs/comparison.md");
    let of_table = |text: &str| {
        let row = rows(text).into_iter().find(|row| row[0].starts_with("CPU a decision")).unwrap();
        numbers(&row[1..].join(" "))
    };
    let beside = [tollgate, in_redis, ratelimit, limitador, gubernator, throttlecrab];
    for (stated, measured) in [
        (numbers(cheap), &[tollgate, throttlecrab, gubernator, in_redis, ratelimit][..]),
        (of_table(section(&readme, "Beside others")), &beside),
        (of_table(section(&comparison, "Twelve questions")), &beside),
    ] {
        assert_eq!(stated.len(), measured.len(), "{stated:?}");
        assert_eq!(stated, as_stated(&stated, measured));
    }
}

#[test]
fn performance_of_readme_is_that_of_its_page() {
    let (readme, page) = (read("README.md"), read("docs/performance.md"));
    let figures =
        |row: &[&str]| row[1..5].iter().map(|cell| cell.trim_matches('*').to_owned()).collect::<Vec<_>>();
    let users: Vec<_> = rows(marked(&page, "summary")).iter().map(|row| figures(row)).collect();
    for row in rows(section(&readme, "Performance")) {
        assert!(users.contains(&figures(&row)), "{row:?}");
    }
}
