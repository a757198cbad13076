//! The files of rules. They yield documents with the locations of their nodes, as a control plane does; everything after
//! that is the same.

#[cfg(feature = "watch")]
use std::time::Duration;
use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use tollgate_counter::files;

use crate::{
    compile::{compile_all, compile_with},
    contents::{Contents, RuleInput},
    diagnostics::{Location, Problem, Problems, RuleOrigin},
    rule_set::{Rules, Trial},
    yaml,
};

#[cfg(feature = "watch")]
mod file_events;
#[cfg(feature = "watch")]
mod overlay_file;
#[cfg(feature = "watch")]
mod watch;

#[cfg(feature = "watch")]
pub use overlay_file::{OverlayFile, OverlayReceiver};
#[cfg(feature = "watch")]
pub use watch::Watcher;

/// Where rule files or an overlay are, and how often they are read.
#[cfg(feature = "watch")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSettings {
    /// A rule file, a directory of rule files, or an overlay file.
    pub path: PathBuf,
    /// The interval between comparisons of the files with what is active; at least 50 ms.
    pub poll_interval: Duration,
}

#[cfg(feature = "watch")]
impl FileSettings {
    /// The default interval.
    pub const POLL_INTERVAL: Duration = Duration::from_secs(3);

    /// The rules at `path` with the default interval.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), poll_interval: Self::POLL_INTERVAL }
    }
}

/// The maximum depth of nested directories.
const DEPTH_MAX: usize = 16;
/// The maximum number of directory entries.
const ENTRIES_MAX: usize = 10_000;
/// The maximum size of all files together: 64 MiB.
const BYTES_MAX: usize = 64 << 20;

/// Reads and compiles the rules under `path`, a file or a directory.
pub fn load(path: &Path) -> Result<Rules, Problems> {
    compile_all(&read(path), None)
}

/// Reads and compiles the rules under `path`, a file or a directory, with the numbers of `trial`.
pub fn load_trial(path: &Path, trial: &Trial) -> Result<Rules, Problems> {
    let Contents { sources, problems } = read(path);
    compile_with(problems, &sources, None, Some(trial))
}

/// Reads the rule files at `path`.
fn read(path: &Path) -> Contents {
    let mut contents = Contents::default();
    let files = DirectoryWalk::walk(path, &mut contents.problems);
    let mut bytes_left = BYTES_MAX;
    for file in &files {
        match bytes_of(file, bytes_left) {
            Ok(bytes) => {
                bytes_left -= bytes.len();
                contents.sources.push(RuleInput::file(&file.to_string_lossy(), bytes));
            }
            Err(error) => contents.problems.push(unreadable(file, &error)),
        }
    }
    if files.is_empty() && contents.problems.is_empty() {
        let what = "the directory holds no `*.yaml` or `*.yml` file; it needs at least one".into();
        contents.problems.push(Problem { location: Location::whole(origin(path)), what });
    }
    contents
}

/// A walk through a directory that visits each file once, through however many symbolic links, and ends on loops.
struct DirectoryWalk<'p> {
    problems: &'p mut Problems,
    files: Vec<PathBuf>,
    directories_seen: HashSet<PathBuf>,
    entries_left: usize,
}

impl<'p> DirectoryWalk<'p> {
    /// The files at `path`, sorted by path.
    fn walk(path: &Path, problems: &'p mut Problems) -> Vec<PathBuf> {
        let mut walk =
            Self { problems, files: Vec::new(), directories_seen: HashSet::new(), entries_left: ENTRIES_MAX };
        match fs::metadata(path) {
            Ok(about) if about.is_dir() => walk.directory(path, 0),
            Ok(_) => walk.files.push(path.to_owned()),
            Err(error) => walk.problems.push(unreadable(path, &error)),
        }
        walk.files.sort();
        let mut seen = HashSet::new();
        walk.files.retain(|file| fs::canonicalize(file).map_or(true, |real| seen.insert(real)));
        walk.files
    }

    fn directory(&mut self, path: &Path, depth: usize) {
        match self.entries(path, depth) {
            Ok(entries) => entries.iter().for_each(|entry| self.entry(entry, depth)),
            Err(error) => self.problems.push(unreadable(path, &error)),
        }
    }

    /// The entries of a directory, sorted; empty if it was visited before. Hidden entries are skipped: a Kubernetes
    /// volume contains each file a second time below `..data`.
    fn entries(&mut self, path: &Path, depth: usize) -> io::Result<Vec<PathBuf>> {
        if !self.directories_seen.insert(fs::canonicalize(path)?) {
            return Ok(Vec::new());
        }
        if depth > DEPTH_MAX {
            return Err(io::Error::other(format!("directories are nested more than {DEPTH_MAX} deep")));
        }
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if self.entries_left == 0 {
                return Err(io::Error::other(format!(
                    "more than {ENTRIES_MAX} files and directories in all"
                )));
            }
            self.entries_left -= 1;
            entries.push(entry.path());
        }
        entries.sort();
        Ok(entries)
    }

    fn entry(&mut self, path: &Path, depth: usize) {
        let is_rule_file = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
        match fs::metadata(path) {
            Ok(about) if about.is_dir() => self.directory(path, depth + 1),
            Ok(_) if is_rule_file => self.files.push(path.to_owned()),
            Err(error) if is_rule_file => self.problems.push(unreadable(path, &error)),
            Ok(_) | Err(_) => {}
        }
    }
}

fn bytes_of(path: &Path, bytes_left: usize) -> io::Result<Vec<u8>> {
    // One byte more than allowed, to detect files that are too large.
    let bytes_max = yaml::BYTES_MAX.min(bytes_left) + 1;
    let bytes = files::read_prefix(path, bytes_max as u64)?;
    if bytes.len() > bytes_left {
        return Err(io::Error::other(format!("all files together have more than {BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    let is_url = ["http://", "https://"].iter().any(|scheme| path.to_string_lossy().starts_with(scheme));
    let what = if is_url {
        "is a URL, which only the service reads: save the file first, as with `curl -fsSo rules.yaml URL`"
            .into()
    } else {
        format!("cannot be read: {error}")
    };
    Problem { location: Location::whole(origin(path)), what }
}

fn origin(path: &Path) -> std::sync::Arc<RuleOrigin> {
    RuleOrigin::file(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let contents = read(directory);
        assert!(contents.problems.is_empty(), "{}", contents.problems);
        let name = |source: &RuleInput| {
            Path::new(source.path()).strip_prefix(directory).unwrap().to_string_lossy().into_owned()
        };
        contents.sources.iter().map(name).collect()
    }

    fn write(directory: &Path, names: &[&str]) {
        for name in names {
            let path = directory.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
    }

    #[test]
    fn rule_files_are_read_in_path_order_and_others_are_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        write(
            path,
            &[
                "b.yaml",
                "a.yml",
                "c/a.yaml",
                "c.yaml",
                "README.md",
                "b.yaml~",
                "b.yaml.swp",
                ".x.yaml",
                ".git/y.yaml",
            ],
        );
        assert_eq!(names(path), ["a.yml", "b.yaml", "c/a.yaml", "c.yaml"]);
    }

    #[test]
    fn file_behind_several_links_is_read_once_and_loops_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        write(path, &["real/b.yaml"]);
        symlink(path.join("real/b.yaml"), path.join("a.yaml")).unwrap();
        symlink(path.join("real"), path.join("again")).unwrap();
        symlink(path, path.join("real/loop")).unwrap();
        assert_eq!(names(path), ["a.yaml"]);
    }

    #[test]
    fn unreadable_file_is_reported_as_problem() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let problem = |path: &Path| load(path).unwrap_err().to_string();
        assert!(
            problem(path)
                .ends_with(":1:1: the directory holds no `*.yaml` or `*.yml` file; it needs at least one")
        );
        let gone = problem(&path.join("gone.yaml"));
        assert!(gone.contains("gone.yaml:1:1: cannot be read: No such file"), "{gone}");
        let url = problem(Path::new("https://rules.example/edge.yaml"));
        assert!(url.starts_with("https://rules.example/edge.yaml:1:1: is a URL"), "{url}");
        symlink(path.join("nowhere"), path.join("dangling.yaml")).unwrap();
        write(path, &["x/broken.yaml"]);
        let both = problem(path);
        assert!(
            both.contains("dangling.yaml:1:1: cannot be read")
                && both.contains("x/broken.yaml:1:1: expected a mapping"),
            "{both}"
        );
    }

    #[test]
    fn files_beyond_the_total_size_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        fs::write(&path, [b' '; 100]).unwrap();
        assert_eq!(bytes_of(&path, 100).unwrap().len(), 100);
        let problem = bytes_of(&path, 99).unwrap_err().to_string();
        assert_eq!(problem, "all files together have more than 67108864 bytes");
    }

    #[test]
    fn file_that_is_not_regular_is_refused_without_blocking() {
        let what = load(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(what, "/dev/zero:1:1: cannot be read: it is a device, not a regular file");
    }

    #[test]
    fn fingerprint_changes_with_path_content_and_problem() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut seen = HashSet::from([read(path).fingerprint()]);
        write(path, &["a.yaml"]);
        assert!(seen.insert(read(path).fingerprint()));
        assert!(!seen.insert(read(path).fingerprint()));
        fs::rename(path.join("a.yaml"), path.join("b.yaml")).unwrap();
        assert!(seen.insert(read(path).fingerprint()));
        fs::write(path.join("b.yaml"), "").unwrap();
        assert!(seen.insert(read(path).fingerprint()));
    }
}
