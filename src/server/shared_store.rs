//! Runs this process as a replica of a shared store.

use std::sync::Arc;

use tokio::{sync::watch, task::JoinSet};

use crate::{
    rules::ActiveRules,
    server::Error,
    shared_store::{Settings, SharedStore},
    time::Clock,
};

/// Starts to connect to the store. Passwords that cannot be read are an error.
pub(super) fn start(
    settings: Settings,
    clock: &Clock,
    active_rules: &Arc<ActiveRules>,
    background: &mut JoinSet<()>,
) -> Result<SharedStore, Error> {
    let files = settings.password_files.clone();
    let (passwords, received) = watch::channel(files.read()?);
    let store = SharedStore::new(settings, clock.clone(), active_rules.clone());
    background.spawn(store.clone().run(received));
    background.spawn(files.watch(passwords));
    Ok(store)
}
