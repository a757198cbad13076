//! Settings that are valid one by one and do not go together.

/// What is wrong with settings that are valid one by one.
#[derive(Default)]
pub(super) struct Conflicts(pub(super) Vec<String>);

/// The name of a setting in its section, and whether it has a value.
pub(super) type Named<'n> = (&'n str, bool);

impl Conflicts {
    pub(super) fn add(&mut self, conflict: impl Into<String>) {
        self.0.push(conflict.into());
    }

    /// Adds a conflict for each setting that has a value and needs another one that has none. Their names follow
    /// `prefix`.
    pub(super) fn require(&mut self, prefix: &str, needs: &[(Named<'_>, Named<'_>)]) {
        for ((name, _), (needed, _)) in needs.iter().filter(|((_, is_set), (_, is_met))| *is_set && !is_met) {
            self.add(format!("{prefix}{name} needs {prefix}{needed}, which is not set"));
        }
    }
}
