//! The commands of pages: each runs against a service with the rules that the page shows above it, and prints what the
//! page shows below it.

use std::{fs, path::Path, time::Duration};

use tokio::process::Command;

use crate::{
    harness::{Service, http},
    program::PROGRAM,
};

/// The page `docs/NAME`.
pub fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
}

/// The fenced blocks of a page: their language and their text.
pub fn blocks(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.split("\n```").skip(1).step_by(2).map(|block| block.split_once('\n').unwrap())
}

/// Whether a block is a whole rule file.
pub fn is_rule_file((language, text): (&str, &str)) -> bool {
    language == "yaml" && text.starts_with("domain:")
}

/// The commands of a block of the language `console`, each with what it prints.
fn commands(block: &str) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), String::new())),
            // An open quote continues the command.
            (None, Some((command, _))) if command.matches('\'').count() % 2 == 1 => {
                *command += "\n";
                *command += line;
            }
            (None, Some((_, output))) => {
                *output += line;
                *output += "\n";
            }
            (None, None) => panic!("output before the first command: {line}"),
        }
    }
    commands
}

/// The words of a command, as a shell splits them: single quotes keep a text together.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (index, part) in command.split('\'').enumerate() {
        let is_quoted = index % 2 == 1;
        for (gap, text) in part.split(|letter: char| !is_quoted && letter.is_whitespace()).enumerate() {
            if gap > 0 {
                words.push(String::new());
            }
            *words.last_mut().unwrap() += text;
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Runs `tollgate` in the directory of the rules. A command that asks a server asks this one.
async fn tollgate(service: &Service, arguments: &[&str]) -> String {
    let to = match arguments[0] {
        "ask" => Some(service.addresses.grpc.to_string()),
        "counters" | "doctor" | "explain" => Some(service.addresses.admin.to_string()),
        _ => None,
    };
    let mut command = Command::new(PROGRAM);
    command.current_dir(service.rules.path()).args(arguments).kill_on_drop(true);
    command.args(to.iter().flat_map(|to| ["--to", to.as_str()]));
    let done = command.output().await.unwrap();
    String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
}

/// The body of the answer to `curl URL [-d BODY]`; the URL has the usual port of a listener.
async fn curl(service: &Service, arguments: &[&str]) -> String {
    let (method, body) = match arguments[1..] {
        [] => ("GET", ""),
        ["-d", body] => ("POST", body),
        _ => panic!("curl with {arguments:?}"),
    };
    let (port, path) = arguments[0].strip_prefix("http://127.0.0.1:").unwrap().split_at(4);
    let address = match port {
        "8080" => service.addresses.http,
        "6070" => service.addresses.admin,
        port => panic!("no listener has the port {port}"),
    };
    http(address, method, path, body).await.unwrap().1
}

async fn run(service: &Service, command: &str) -> String {
    let words = words(command);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["tollgate", ref arguments @ ..] => tollgate(service, arguments).await,
        ["curl", ref arguments @ ..] => curl(service, arguments).await,
        ["sleep", seconds] => {
            service.advance(Duration::from_secs_f64(seconds.parse().unwrap()));
            String::new()
        }
        _ => panic!("the test cannot run {command}"),
    }
}

/// Whether this is the output that the page shows, line by line. A line `...` of the page stands for any lines.
fn is_shown(shown: &str, printed: &str) -> bool {
    let shown: Vec<_> = shown.trim_end().lines().collect();
    are_shown(&shown, &printed.trim_end().lines().collect::<Vec<_>>())
}

fn are_shown(shown: &[&str], printed: &[&str]) -> bool {
    match (shown, printed) {
        ([], printed) => printed.is_empty(),
        (["...", rest @ ..], printed) => (0..=printed.len()).any(|from| are_shown(rest, &printed[from..])),
        ([shown, rest @ ..], [line, printed @ ..]) => shown == line && are_shown(rest, printed),
        ([..], []) => false,
    }
}

/// Runs the commands of a page in their order. Each rule file of the page begins with a service of its own.
async fn assert_page_shows_what_commands_print(name: &str) {
    let page = page(name);
    let (mut service, mut ran) = (None, 0);
    for (language, text) in blocks(&page) {
        if is_rule_file((language, text)) {
            service = Some(Service::start(text).await);
        }
        if language == "console" {
            let service = service.as_ref().expect("rules stand above the commands");
            for (command, shown) in commands(text) {
                let printed = run(service, &command).await;
                assert!(
                    is_shown(&shown, &printed),
                    "{name}: $ {command}\nprints\n{printed}\nand not\n{shown}"
                );
                ran += 1;
            }
        }
    }
    assert!(ran > 0, "{name} has no commands");
}

#[tokio::test]
async fn commands_of_recipes_page_print_what_it_shows() {
    assert_page_shows_what_commands_print("recipes.md").await;
}

#[tokio::test]
async fn commands_of_llm_page_print_what_it_shows() {
    assert_page_shows_what_commands_print("llm.md").await;
}

#[tokio::test]
async fn commands_of_concepts_page_print_what_it_shows() {
    assert_page_shows_what_commands_print("concepts.md").await;
}

#[tokio::test]
async fn commands_of_answers_page_print_what_it_shows() {
    assert_page_shows_what_commands_print("answers.md").await;
}

#[test]
fn each_recipe_has_a_rule_and_a_call() {
    let page = page("recipes.md");
    let recipes: Vec<_> = page.split("\n## ").skip(1).collect();
    assert!(recipes.len() >= 12, "{} recipes", recipes.len());
    for recipe in recipes {
        let mut languages = blocks(recipe).map(|block| (is_rule_file(block), block.0));
        assert_eq!(languages.next(), Some((true, "yaml")), "{recipe}");
        assert_eq!(languages.next(), Some((false, "console")), "{recipe}");
    }
}
