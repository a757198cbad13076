//! `/live`: the last five minutes as points, and then samples of all numbers. One task samples for all open pages.
//! While none is open, it takes a point now and then.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

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
use tollgate_counter::{
    lock::lock,
    time::{Stopwatch, Timestamp},
};
use tracing::error;

use crate::api::{
    admin::{
        page::sample::{HistoryPoint, PageSampler},
        state::AdminState,
    },
    format::AdminError,
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

/// The time between points.
const POINT_INTERVAL: Duration = Duration::from_secs(5);
/// The number of points: five minutes.
const POINTS_MAX: usize = 60;

/// The latest sample and the points before it, and the pages that read them. A page that reads slowly misses samples.
#[derive(Debug)]
pub struct Live {
    latest: watch::Sender<Latest>,
    history: Mutex<PageHistory>,
    opened: Notify,
    permits: Arc<Semaphore>,
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
            history: Mutex::default(),
            opened: Notify::new(),
            permits: Arc::new(Semaphore::new(PAGES_MAX)),
        }
    }
}

impl Live {
    /// Samples until `stopped`, which ends the streams of all pages.
    pub async fn run(self: Arc<Self>, sources: AdminState, stopped: impl Future<Output = ()>) {
        tokio::select! {
            () = self.sample(sources) => {}
            () = stopped => {}
        }
        self.end();
    }

    /// Ends the streams of all pages.
    pub(in crate::api) fn end(&self) {
        self.latest.send_replace(Latest::Ended);
    }

    async fn sample(&self, sources: AdminState) {
        let mut sampler = PageSampler::new(sources.clone());
        let mut point_due = Instant::now();
        loop {
            let now = Instant::now();
            let has_pages = self.latest.receiver_count() > 0;
            let is_due = point_due <= now;
            if is_due {
                point_due = now + POINT_INTERVAL;
            }
            let mut pause = Duration::ZERO;
            if has_pages || is_due {
                // With very many rules this takes a while, which no other task should wait for.
                let sampled = spawn_blocking(move || {
                    let stopwatch = Stopwatch::start();
                    let (point, line) = if has_pages {
                        let (point, line) = sampler.line();
                        (point, Some(line))
                    } else {
                        sampler.forget_growth();
                        (sampler.point(), None)
                    };
                    (sampler, point, line, stopwatch.elapsed())
                });
                match sampled.await {
                    Ok((returned, point, line, took)) => {
                        sampler = returned;
                        pause = took * PAUSE_FACTOR;
                        // Before the point, so that no sample that a page gets is older than its points.
                        if let Some(line) = line {
                            self.latest.send_replace(Latest::Line(line.into()));
                        }
                        if is_due {
                            lock(&self.history).push(&point);
                        }
                    }
                    Err(error) => {
                        error!(%error, "cannot sample figures for the operators' page");
                        sampler = PageSampler::new(sources.clone());
                    }
                }
            }
            if has_pages {
                sleep(INTERVAL.max(pause)).await;
            } else {
                self.latest.send_replace(Latest::Nothing);
                // Ends at that instant, or when a page is opened.
                let _ = timeout_at(point_due.max(Instant::now() + pause), self.opened.notified()).await;
            }
        }
    }

    /// The points so far and the samples from now on; `None` if too many pages are open.
    fn open(&self) -> Option<OpenPage> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        let mut latest = self.latest.subscribe();
        // The latest sample is at most one interval old.
        latest.mark_changed();
        self.opened.notify_one();
        Some(OpenPage {
            history: Some(lock(&self.history).line()),
            latest,
            end: Instant::now() + STREAM_TIME,
            _permit: permit,
        })
    }
}

/// An open page; dropping it frees its permit.
struct OpenPage {
    /// The first line, until it is sent.
    history: Option<Bytes>,
    latest: watch::Receiver<Latest>,
    end: Instant,
    _permit: OwnedSemaphorePermit,
}

impl OpenPage {
    /// The next line: the history, then samples; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(history) = self.history.take() {
            return Some(history);
        }
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

/// The history and the samples as lines of JSON.
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

/// The latest points, oldest first, so that a page that is opened begins with them.
// Invariants: at most `POINTS_MAX` points, whose instants never decrease.
#[derive(Debug, Default)]
struct PageHistory(VecDeque<(Timestamp, String)>);

impl PageHistory {
    /// Adds a point, and drops the oldest one if there are too many. If the clock was set back, the points before are
    /// dropped: they are in the future.
    fn push(&mut self, point: &HistoryPoint) {
        if self.0.back().is_some_and(|(last, _)| point.at < *last) {
            self.0.clear();
        }
        if self.0.len() == POINTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((point.at, point.json().to_string()));
    }

    /// All points as one line of JSON.
    fn line(&self) -> Bytes {
        let points: Vec<_> = self.0.iter().map(|(_, point)| &**point).collect();
        format!("{{\"points\":[{}]}}\n", points.join(",")).into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tollgate_counter::time::Timestamp;

    use super::*;
    use crate::api::{
        admin::{page::sample::point, state::Certificates},
        fuzz::admin_state,
    };

    fn seconds(history: &PageHistory) -> Vec<Value> {
        let line: Value = serde_json::from_slice(&history.line()).unwrap();
        let points = line["points"].as_array().unwrap();
        points.iter().map(|point| point["at"].clone()).collect()
    }

    async fn until(mut condition: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !condition() {
            // The time of these tests is paused, so this takes no time of the machine.
            assert!(
                begun.elapsed() < Duration::from_secs(3_600),
                "the condition does not hold within an hour"
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The number of points in the first line of a stream.
    async fn points(page: &mut OpenPage) -> usize {
        let line: Value = serde_json::from_slice(&page.next().await.unwrap()).unwrap();
        line["points"].as_array().unwrap().len()
    }

    #[tokio::test(start_paused = true)]
    async fn samples_stop_without_pages_and_start_with_the_next() {
        let live = Arc::new(Live::default());
        let running = tokio::spawn(live.clone().run(admin_state(), std::future::pending()));
        for _ in 0..2 {
            let mut page = live.open().unwrap();
            points(&mut page).await;
            for _ in 0..3 {
                let sample: Value = serde_json::from_slice(&page.next().await.unwrap()).unwrap();
                assert!(sample["rules"].is_object(), "{sample}");
            }
            drop(page);
            until(|| *live.latest.borrow() == Latest::Nothing).await;
        }
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn page_opened_later_begins_with_points_of_five_minutes() {
        let live = Arc::new(Live::default());
        let running = tokio::spawn(live.clone().run(admin_state(), std::future::pending()));
        // Without a page, then with one, and beyond the bound.
        sleep(POINT_INTERVAL * 10 + INTERVAL).await;
        let mut page = live.open().unwrap();
        assert_eq!(points(&mut page).await, 11);
        while page.next().await.is_some() {}
        let among_pages = points(&mut live.open().unwrap()).await;
        assert!((21..=23).contains(&among_pages), "{among_pages}");
        sleep(POINT_INTERVAL * 100).await;
        assert_eq!(points(&mut live.open().unwrap()).await, 60);
        running.abort();
    }

    /// Makes each sample take a while.
    #[derive(Debug)]
    struct SlowToRead;

    /// The least time that a sample takes with it.
    const SLOWNESS: Duration = Duration::from_millis(30);

    impl Certificates for SlowToRead {
        fn expiries(&self) -> Vec<(&'static str, Timestamp)> {
            std::thread::sleep(SLOWNESS);
            Vec::new()
        }

        fn refused(&self) -> Vec<&'static str> {
            Vec::new()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_samples_are_rare() {
        let live = Arc::new(Live::default());
        let sources = AdminState { certificates: Arc::new(SlowToRead), ..admin_state() };
        let running = tokio::spawn(live.clone().run(sources, std::future::pending()));
        let mut page = live.open().unwrap();
        points(&mut page).await;
        page.next().await.unwrap();
        let begin = Instant::now();
        page.next().await.unwrap();
        assert!(begin.elapsed() >= SLOWNESS * PAUSE_FACTOR, "{:?}", begin.elapsed());
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn stream_ends_after_its_time_and_frees_its_place() {
        let live = Arc::new(Live::default());
        let running = tokio::spawn(live.clone().run(admin_state(), std::future::pending()));
        let begin = Instant::now();
        let mut page = live.open().unwrap();
        while page.next().await.is_some() {}
        assert_eq!(begin.elapsed(), STREAM_TIME);
        drop(page);
        assert_eq!(live.permits.available_permits(), PAGES_MAX);
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn open_pages_share_samples_and_end_together() {
        let live = Arc::new(Live::default());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let run = live.clone().run(admin_state(), async { stopped.await.unwrap_or_default() });
        let running = tokio::spawn(run);
        let mut pages: Vec<_> = (0..PAGES_MAX).map(|_| live.open().unwrap()).collect();
        assert!(live.open().is_none());
        for page in &mut pages {
            points(page).await;
        }
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

    #[test]
    fn history_keeps_latest_points_of_five_minutes() {
        let mut history = PageHistory::default();
        assert_eq!(&*history.line(), b"{\"points\":[]}\n");
        for number in 0..1_000 {
            history.push(&point(number * POINT_INTERVAL.as_secs()));
        }
        let kept = seconds(&history);
        assert_eq!(kept.len(), POINTS_MAX);
        assert_eq!((&kept[0], &kept[59]), (&json!("1970-01-01T01:18:20Z"), &json!("1970-01-01T01:23:15Z")));
        assert!(history.line().len() < 64 * 1024);
    }

    #[test]
    fn clock_that_is_set_back_drops_points_before() {
        let mut history = PageHistory::default();
        for second in [100, 105, 105, 3] {
            history.push(&point(second));
        }
        assert_eq!(seconds(&history), [json!("1970-01-01T00:00:03Z")]);
    }
}
