//! `/live`: samples of all figures. One task samples for all open pages, and only while a page is open.

use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use futures_util::stream;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
    task::spawn_blocking,
    time::{Instant, sleep, timeout_at},
};
use tollgate_limiter::time::Stopwatch;
use tracing::error;

use crate::api::admin::{
    error::AdminError,
    page::sample::{Sampler, Sources},
};

/// The maximum number of open pages.
const PAGES_MAX: usize = 10;
/// The time between samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// The time between samples is at least this many times the time that a sample takes, as it does with very many rules:
/// samples take at most 1 % of a core.
const PAUSE_FACTOR: u32 = 100;

/// The time after which a stream ends and the page opens another one: a token that was replaced is good for no longer.
const STREAM_TIME: Duration = Duration::from_secs(60);

/// The latest sample, and the pages that read it. A page that reads slowly misses samples.
#[derive(Debug)]
pub struct Live {
    latest: watch::Sender<Latest>,
    opened: Notify,
    places: Arc<Semaphore>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Latest {
    /// No page is open.
    Nothing,
    /// A line of JSON.
    Line(Bytes),
    /// The process stops.
    Ended,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            latest: watch::Sender::new(Latest::Nothing),
            opened: Notify::new(),
            places: Arc::new(Semaphore::new(PAGES_MAX)),
        }
    }
}

impl Live {
    /// Samples while pages are open, until `stopped`, which ends the streams of all pages.
    pub async fn run(self: Arc<Self>, sources: Sources, stopped: impl Future<Output = ()>) {
        tokio::select! {
            () = self.sample_for_pages(sources) => {}
            () = stopped => {}
        }
        self.end();
    }

    /// Ends the streams of all pages.
    pub(in crate::api) fn end(&self) {
        self.latest.send_replace(Latest::Ended);
    }

    async fn sample_for_pages(&self, sources: Sources) {
        let mut sampler = Sampler::new(sources.clone());
        loop {
            if self.latest.receiver_count() == 0 {
                self.latest.send_replace(Latest::Nothing);
                self.opened.notified().await;
                continue;
            }
            // With very many rules this takes a while, which no other task should wait for.
            let sampled = spawn_blocking(move || {
                let stopwatch = Stopwatch::start();
                let line = sampler.line();
                (sampler, line, stopwatch.elapsed())
            });
            let took = match sampled.await {
                Ok((returned, line, took)) => {
                    sampler = returned;
                    self.latest.send_replace(Latest::Line(line.into()));
                    took
                }
                Err(error) => {
                    error!(%error, "cannot sample figures for the operators' page");
                    sampler = Sampler::new(sources.clone());
                    Duration::ZERO
                }
            };
            sleep(INTERVAL.max(took * PAUSE_FACTOR)).await;
        }
    }

    /// The samples from now on; `None` if too many pages are open.
    fn open(&self) -> Option<OpenPage> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        let mut latest = self.latest.subscribe();
        // The latest sample is at most one interval old.
        latest.mark_changed();
        self.opened.notify_one();
        Some(OpenPage { latest, end: Instant::now() + STREAM_TIME, _place: place })
    }
}

/// An open page; dropping it frees its place.
struct OpenPage {
    latest: watch::Receiver<Latest>,
    end: Instant,
    _place: OwnedSemaphorePermit,
}

impl OpenPage {
    /// The next sample; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            timeout_at(self.end, self.latest.changed()).await.ok()?.ok()?;
            let latest = self.latest.borrow_and_update().clone();
            match latest {
                Latest::Nothing => {}
                Latest::Line(line) => return Some(line),
                Latest::Ended => return None,
            }
        }
    }
}

/// A router with the stream of samples.
pub fn router(live: Arc<Live>) -> Router {
    Router::new().route("/live", get(stream)).with_state(live)
}

/// The samples as lines of JSON.
async fn stream(State(live): State<Arc<Live>>) -> Result<Response, AdminError> {
    let page = live.open().ok_or_else(|| {
        AdminError::unavailable(format!("{PAGES_MAX} pages are open already: close one and try again"))
    })?;
    let lines = stream::unfold(page, async |mut page| {
        let line = page.next().await?;
        Some((Ok::<_, Infallible>(line), page))
    });
    let headers = [(CONTENT_TYPE, "application/x-ndjson"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(lines)).into_response())
}

#[cfg(test)]
mod tests {
    use tollgate_limiter::time::Timestamp;

    use super::*;
    use crate::api::{admin::Certificates, fuzz::admin_state};

    #[derive(Debug)]
    struct WithoutTls;

    impl Certificates for WithoutTls {
        fn expiries(&self) -> Vec<(&'static str, Timestamp)> {
            Vec::new()
        }
    }

    fn sources() -> Sources {
        Sources { state: admin_state(), requests: Arc::default(), certificates: Arc::new(WithoutTls) }
    }

    async fn until(mut condition: impl FnMut() -> bool) {
        while !condition() {
            sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sampling_stops_without_pages_and_starts_with_the_next() {
        let live = Arc::new(Live::default());
        let running = tokio::spawn(live.clone().run(sources(), std::future::pending()));
        for _ in 0..2 {
            let mut page = live.open().unwrap();
            for _ in 0..3 {
                assert!(page.next().await.unwrap().ends_with(b"}\n"));
            }
            drop(page);
            until(|| *live.latest.borrow() == Latest::Nothing).await;
        }
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn stream_ends_after_its_time_and_frees_its_place() {
        let live = Arc::new(Live::default());
        let running = tokio::spawn(live.clone().run(sources(), std::future::pending()));
        let begin = Instant::now();
        let mut page = live.open().unwrap();
        while page.next().await.is_some() {}
        assert_eq!(begin.elapsed(), STREAM_TIME);
        drop(page);
        assert_eq!(live.places.available_permits(), PAGES_MAX);
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn open_pages_share_samples_and_end_together() {
        let live = Arc::new(Live::default());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let run = live.clone().run(sources(), async { stopped.await.unwrap_or_default() });
        let running = tokio::spawn(run);
        let mut pages: Vec<_> = (0..PAGES_MAX).map(|_| live.open().unwrap()).collect();
        assert!(live.open().is_none());
        let first = pages[0].next().await.unwrap();
        for page in &mut pages[1..] {
            assert_eq!(page.next().await.unwrap(), first);
        }
        stop.send(()).unwrap();
        running.await.unwrap();
        for page in &mut pages {
            assert_eq!(page.next().await, None);
        }
    }
}
