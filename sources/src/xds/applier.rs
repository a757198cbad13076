//! Applies the rules of a control plane and the overlay, whichever changes.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tollgate_rules::{Contents, Overlay, OverlayReceiver, Problems, RuleLoader};

/// Rules of a response.
pub(super) struct Update {
    pub(super) contents: Arc<Contents>,
    pub(super) version: String,
    /// Gets what became of them; nothing after a panic, which is a bug and was logged.
    pub(super) done: oneshot::Sender<Result<(), Arc<Problems>>>,
}

/// Applies updates and overlays one after the other, until there are no more updates.
pub(super) async fn apply(
    mut loader: RuleLoader,
    mut updates: mpsc::Receiver<Update>,
    mut overlays: Option<OverlayReceiver>,
) {
    // The active contents and their version.
    let mut active: Option<(Arc<Contents>, String)> = None;
    loop {
        tokio::select! {
            update = updates.recv() => {
                let Some(Update { contents, version, done }) = update else { return };
                // A new connection begins with the rules that are active.
                let is_active = active.as_ref().is_some_and(|(active, _)| *active == contents);
                let outcome = if is_active {
                    loader.recover(Some(&version));
                    Some(Ok(()))
                } else {
                    loader.load(&contents, Some(&version)).await
                };
                if let Some(Ok(())) = outcome {
                    active = Some((contents, version));
                }
                if let Some(outcome) = outcome {
                    // The client is gone only if this task is too.
                    let _ = done.send(outcome);
                }
            }
            overlay = changed(&mut overlays) => {
                loader.set_overlay(overlay);
                if let Some((contents, version)) = &active {
                    // An overlay refuses no rules, so the outcome is known.
                    let _ = loader.load(contents, Some(version)).await;
                }
            }
        }
    }
}

/// Waits for the next overlay; for ever without one.
async fn changed(overlays: &mut Option<OverlayReceiver>) -> Option<Arc<Overlay>> {
    let Some(overlays) = overlays else { return std::future::pending().await };
    match overlays.changed().await {
        Ok(()) => overlays.borrow_and_update().clone(),
        Err(_) => std::future::pending().await,
    }
}
