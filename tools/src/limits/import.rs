//! `tollgate limits import`: all limits of a file are read, then checked by the server, and then set, in batches.

use std::{
    fs,
    io::{IsTerminal as _, stderr},
    ops::Range,
    time::Duration,
};

use axum::http::Method;
use clap::ArgMatches;
use serde_json::{Value, json};
use tokio::time::sleep;
use tollgate_counter::printable;

use crate::{
    admin_client,
    command::{Interrupts, block_on, list, show_progress},
    limits::rows::RowReader,
};

/// The most limits of a call.
const BATCH: usize = 1_000;
/// The most bytes of the lines of a call, unless one line has more.
const BATCH_BYTES: usize = 2 * 1024 * 1024;
/// The code of a limit that is not set because another one is invalid.
const ABORTED: u64 = 10;

/// The code of a limit that its owner or backup owner has not confirmed.
const UNAVAILABLE: u64 = 14;
/// The pauses before a batch with unavailable limits is repeated. Together they outlast the recovery of slots whose owner
/// was killed.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

/// A file of limits.
struct ImportFile<'t> {
    path: &'t str,
    reader: RowReader,
    // The lines with a limit, with their numbers.
    rows: Vec<(usize, &'t str)>,
}

/// What is done with all limits of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Check,
    Set,
}

/// Why a batch was not checked or set.
struct BatchError {
    why: String,
    // Whether it may be done if it is repeated.
    is_unavailable: bool,
}

/// Imports the file of the arguments.
pub(super) fn run(matches: &ArgMatches) -> Result<String, String> {
    let path = matches.get_one::<String>("file").map(String::as_str).unwrap_or_default();
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let mut file = ImportFile::read(path, &text)?;
    let limits = file.rows.len();
    block_on(async {
        file.pass(matches, Pass::Check).await?;
        if matches.get_flag("dry-run") {
            return Ok(format!("{limits} limits of {path} are valid; nothing is set"));
        }
        file.pass(matches, Pass::Set).await?;
        Ok(format!("{limits} limits are set"))
    })
}

impl<'t> ImportFile<'t> {
    /// Reads all lines. They are read again for each pass, because they take less memory than what they mean.
    fn read(path: &'t str, text: &'t str) -> Result<Self, String> {
        let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()).peekable();
        let mut reader = RowReader::new(lines.peek().map_or("{", |(_, line)| line));
        let mut rows = Vec::new();
        for (number, line) in lines {
            let limit = reader.read(line).map_err(|error| format!("{path}:{number}: {error}"))?;
            rows.extend(limit.map(|_| (number, line)));
        }
        Ok(Self { path, reader, rows })
    }

    /// Checks or sets all limits, and shows on a terminal how far it is.
    async fn pass(&mut self, matches: &ArgMatches, pass: Pass) -> Result<(), String> {
        let shows_progress = stderr().is_terminal();
        let mut interrupts = Interrupts::new()?;
        let all = self.rows.len();
        let mut done = 0;
        while done < all {
            let end = self.end_of_batch(done);
            let set = tokio::select! {
                set = self.repeated_batch(matches, pass, done..end) => set,
                () = interrupts.next() => Err("interrupted".to_owned()),
            };
            if shows_progress && (set.is_err() || end == all) {
                show_progress("");
            }
            set.map_err(|why| self.failed(pass, done..end, &why))?;
            done = end;
            if shows_progress && done < all {
                let verb = if pass == Pass::Set { "set" } else { "checked" };
                show_progress(&format!("{done} of {all} limits are {verb}, {} %", done * 100 / all));
            }
        }
        Ok(())
    }

    fn end_of_batch(&self, begin: usize) -> usize {
        let mut bytes = 0;
        let fits = |(_, line): &&(usize, &str)| {
            let fits = bytes < BATCH_BYTES;
            bytes += line.len();
            fits
        };
        begin + self.rows[begin..].iter().take(BATCH).take_while(fits).count()
    }

    /// Checks or sets limits in one call, which is repeated while limits are unavailable.
    async fn repeated_batch(
        &mut self,
        matches: &ArgMatches,
        pass: Pass,
        rows: Range<usize>,
    ) -> Result<(), String> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let Err(BatchError { why, is_unavailable }) = self.batch(matches, pass, rows.clone()).await
            else {
                return Ok(());
            };
            match pauses.next() {
                Some(pause) if is_unavailable => sleep(pause).await,
                Some(_) | None => return Err(why),
            }
        }
    }

    /// Checks or sets limits in one call. Each is set or none is, unless one cannot be reached or has no memory.
    async fn batch(
        &mut self,
        matches: &ArgMatches,
        pass: Pass,
        rows: Range<usize>,
    ) -> Result<(), BatchError> {
        let undone = |why| BatchError { why, is_unavailable: false };
        let rows = &self.rows[rows];
        let read = rows.iter().filter_map(|(_, line)| self.reader.read(line).transpose());
        let limits = read
            .map(|limit| Ok(json!({"limit": limit?})))
            .collect::<Result<Vec<_>, String>>()
            .map_err(undone)?;
        let body = json!({"limits": limits, "dryRun": pass == Pass::Check}).to_string();
        let answer =
            admin_client::answer(matches, Method::POST, "/v1/limits/set", body).await.map_err(undone)?;
        let results = list(&answer["results"]);
        let is_own = |result: &&Value| result["error"]["code"] != ABORTED;
        let failed = || rows.iter().zip(results).filter(|(_, result)| result.get("error").is_some());
        let worst = failed().find(|(_, result)| is_own(result)).or_else(|| failed().next());
        match worst {
            None => Ok(()),
            Some(((number, _), result)) => {
                let why = format!("{}:{number}: {}", self.path, error(result).unwrap_or_default());
                let is_unavailable = failed().all(|(_, result)| result["error"]["code"] == UNAVAILABLE);
                Err(BatchError { why, is_unavailable })
            }
        }
    }

    /// Why a batch was not checked or set, and what is set.
    fn failed(&self, pass: Pass, rows: Range<usize>, why: &str) -> String {
        let line = |index: usize| self.rows[index].0;
        match pass {
            Pass::Check => format!("{why}; nothing is set"),
            Pass::Set => format!(
                "{why}; the lines before {} are set, those to {} may be, and no others; to go on, repeat the import",
                line(rows.start),
                line(rows.end - 1)
            ),
        }
    }
}

/// Why a result has changed nothing.
pub(super) fn error(result: &Value) -> Option<String> {
    Some(printable::escaped(result.get("error")?["message"].as_str().unwrap_or("unknown error")))
}
