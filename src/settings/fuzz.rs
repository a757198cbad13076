//! The fuzz target of settings files.

use std::fs;

use tollgate_counter::files::fuzz::temporary;

use crate::settings::{CATALOG, sources::SettingsSources, value_type::Setting};

/// A settings file: it has problems that can be shown, or each setting has an effective value.
pub fn settings(bytes: &[u8]) {
    let path = temporary("settings.yaml", bytes);
    let rules = Setting::named("rules.path").expect("rules have a path");
    let flags = vec![(rules, "rules".to_owned())];
    let loaded = SettingsSources { file: Some(path.clone()), flags, ..SettingsSources::default() }.load();
    match loaded {
        Ok(settings) => assert_eq!(settings.given.len(), CATALOG.len()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // A later input replaces a file that remains.
    let _ = fs::remove_file(path);
}
