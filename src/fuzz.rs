//! The fuzz targets. Each takes any bytes, must not panic, and checks what holds for all of them.
//!
//! Compiled for tests, which replay the inputs in `fuzz/seeds`, and for `cargo fuzz` (`tests/fuzz`).

pub use tollgate_rules::fuzz::rules;
pub use tollgate_store::fuzz::slot_data;

pub use crate::{
    api::{
        fuzz::{admin, check, json},
        rls::fuzz::{headers, remote_rls, rls},
        v1::fuzz::v1,
    },
    persistence::fuzz::snapshot,
    server::fuzz::connection,
    settings::fuzz::settings,
};
pub use tollgate_cluster::{fuzz::batch, link::fuzz::link};
pub use tollgate_quota::fuzz::rlqs;
pub use tollgate_sources::{url::fuzz::rules_copy, xds::fuzz::resource};

#[cfg(test)]
mod tests {
    use std::{
        fs,
        panic::catch_unwind,
        path::{Path, PathBuf},
    };

    use super::*;

    type Target = fn(&[u8]);

    const TARGETS: [(&str, Target); 17] = [
        ("admin", admin),
        ("batch", batch),
        ("check", check),
        ("connection", connection),
        ("headers", headers),
        ("json", json),
        ("link", link),
        ("remote_rls", remote_rls),
        ("resource", resource),
        ("rlqs", rlqs),
        ("rls", rls),
        ("rules", rules),
        ("rules_copy", rules_copy),
        ("settings", settings),
        ("slot_data", slot_data),
        ("snapshot", snapshot),
        ("v1", v1),
    ];

    /// The files in a folder of `fuzz`, in order.
    fn files(folder: &str) -> Vec<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(folder);
        let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort_unstable();
        files
    }

    #[test]
    fn every_seed_passes_its_fuzz_target() {
        for (name, target) in TARGETS {
            let seeds = files(&format!("seeds/{name}"));
            assert!(seeds.len() > 1, "{name} has too few seeds");
            for seed in seeds {
                let bytes = fs::read(&seed).unwrap();
                assert!(catch_unwind(|| target(&bytes)).is_ok(), "{} fails", seed.display());
            }
        }
    }

    #[test]
    fn every_fuzz_target_is_listed() {
        let programs = files("fuzz_targets").into_iter().map(|file| file.with_extension(""));
        let programs: Vec<_> = programs.map(|file| file.file_name().unwrap().to_owned()).collect();
        assert_eq!(programs, TARGETS.map(|(name, _)| name));
    }
}
