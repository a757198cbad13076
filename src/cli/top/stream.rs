//! The stream of samples of a server, which is opened again when it ends.

use std::{mem, time::Duration};

use axum::{body::BodyDataStream, http::header};
use futures_util::StreamExt as _;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tollgate_limiter::resilience::Backoff;

use crate::{
    cli::{
        admin_client::{AdminCall, AdminClient},
        top::sample::{Past, Sample},
    },
    http_client::HttpResponse,
};

/// The content type of samples.
const CONTENT_TYPE: &str = "application/x-ndjson";

/// The longest silence of a stream. A server ends each stream after a minute.
const SILENCE_MAX: Duration = Duration::from_secs(65);

/// The maximum length of a sample, in bytes.
const SAMPLE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The delays between attempts to reach the server.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// A line of a stream.
#[derive(Debug)]
pub(super) enum Line {
    /// The first one.
    Past(Past),
    Sample(Box<Sample>),
}

/// What happens to a stream that is followed.
#[derive(Debug)]
pub(super) enum Event {
    Line(Line),
    /// There is no stream for this reason; another attempt follows.
    Lost(String),
}

/// An open stream.
#[derive(Debug)]
pub(super) struct Stream {
    data: BodyDataStream,
    /// Whether the first line was read.
    has_begun: bool,
    /// What has arrived and is not read yet.
    buffer: Vec<u8>,
    /// The length of the part of the buffer that has no end of line.
    searched: usize,
    _connection: JoinSet<hyper::Result<()>>,
}

impl Stream {
    pub(super) async fn open(server: &AdminClient) -> Result<Self, String> {
        let call = AdminCall { method: "GET", path: "/live".to_owned(), body: String::new() };
        let HttpResponse { head, body, connection } = server.in_time(server.open(&call)).await?;
        if head.headers.get(header::CONTENT_TYPE).is_none_or(|kind| kind != CONTENT_TYPE) {
            return Err(server.no_answer("it is not a Tollgate"));
        }
        let data = body.into_data_stream();
        Ok(Self { data, has_begun: false, buffer: Vec::new(), searched: 0, _connection: connection })
    }

    /// The next line; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Result<Option<Line>, String> {
        let Some(line) = self.line().await? else { return Ok(None) };
        let read = if mem::replace(&mut self.has_begun, true) {
            serde_json::from_slice(&line).map(Line::Sample)
        } else {
            serde_json::from_slice(&line).map(Line::Past)
        };
        read.map(Some).map_err(|error| format!("cannot read a sample of the server: {error}"))
    }

    async fn line(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            let end = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let rest = self.buffer.split_off(self.searched + end + 1);
                self.searched = 0;
                return Ok(Some(mem::replace(&mut self.buffer, rest)));
            }
            self.searched = self.buffer.len();
            if self.searched > SAMPLE_BYTES_MAX {
                return Err(format!("a sample of more than {SAMPLE_BYTES_MAX} bytes"));
            }
            match timeout(SILENCE_MAX, self.data.next()).await {
                Err(_) => return Err(format!("no sample within {} s", SILENCE_MAX.as_secs())),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(error.to_string()),
                Ok(Some(Ok(bytes))) => self.buffer.extend_from_slice(&bytes),
            }
        }
    }
}

/// Sends what happens to `stream`, and to those that are opened when it has ended, until `events` is closed.
pub(super) async fn follow(server: AdminClient, stream: Stream, events: mpsc::Sender<Event>) {
    let (mut stream, mut backoff) = (Ok(stream), BACKOFF);
    loop {
        let why = match stream {
            Ok(open) => match forward(open, &events).await {
                Ended::Closed => return,
                // The server ends each stream after a while, so that the token is checked again.
                Ended::AfterSamples => {
                    backoff.reset();
                    stream = Stream::open(&server).await;
                    continue;
                }
                Ended::Lost(why) => server.no_answer(why),
            },
            Err(why) => why,
        };
        if events.send(Event::Lost(why)).await.is_err() {
            return;
        }
        sleep(backoff.next_delay(rand::random())).await;
        stream = Stream::open(&server).await;
    }
}

/// How a stream has ended.
enum Ended {
    /// Nothing reads the events.
    Closed,
    AfterSamples,
    Lost(String),
}

async fn forward(mut stream: Stream, events: &mpsc::Sender<Event>) -> Ended {
    let mut has_samples = false;
    loop {
        match stream.next().await {
            Ok(Some(line)) => {
                has_samples |= matches!(line, Line::Sample(_));
                if events.send(Event::Line(line)).await.is_err() {
                    return Ended::Closed;
                }
            }
            Ok(None) if has_samples => return Ended::AfterSamples,
            Ok(None) => return Ended::Lost("the stream ended without a sample".to_owned()),
            Err(why) => return Ended::Lost(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::body::{Body, Bytes};
    use futures_util::stream;

    use super::*;

    const PAST: &str = concat!(
        r#"{"points":[{"at":"2026-11-23T00:35:42Z","requests":{"count":3,"up_to":[[0.001,3]]},"#,
        r#""decisions":{"ok":2,"over_limit":1,"shadow_denials":0}}]}"#,
        "\n"
    );
    const LINE: &str = include_str!("samples/cluster.ndjson");

    fn stream_of(chunks: impl IntoIterator<Item = Bytes>) -> Stream {
        let chunks: Vec<_> = chunks.into_iter().map(Ok::<_, io::Error>).collect();
        let data = Body::from_stream(stream::iter(chunks)).into_data_stream();
        Stream { data, has_begun: false, buffer: Vec::new(), searched: 0, _connection: JoinSet::new() }
    }

    #[tokio::test]
    async fn samples_are_lines_however_they_arrive() {
        let text = PAST.to_owned() + LINE.trim() + "\n" + LINE.trim() + "\n";
        for size in [1, 7, 4_096, text.len()] {
            let mut stream = stream_of(text.as_bytes().chunks(size).map(Bytes::copy_from_slice));
            let first = stream.next().await.unwrap().unwrap();
            assert!(matches!(first, Line::Past(past) if past.points[0].decisions.over_limit == 1));
            for _ in 0..2 {
                let line = stream.next().await.unwrap().unwrap();
                assert!(matches!(line, Line::Sample(sample) if sample.cluster.is_some()));
            }
            assert!(stream.next().await.unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn other_lines_and_endless_lines_are_errors() {
        for line in ["{}\n", "<html>\n", "\n", "[]\n"] {
            let why = stream_of([Bytes::from(line)]).next().await.unwrap_err();
            assert!(why.starts_with("cannot read a sample"), "{why}");
            let mut begun = stream_of([PAST, line].map(Bytes::from));
            assert!(begun.next().await.unwrap().is_some());
            let why = begun.next().await.unwrap_err();
            assert!(why.starts_with("cannot read a sample"), "{why}");
        }
        let endless = std::iter::repeat_n(Bytes::from(vec![b'x'; 1 << 20]), 6);
        assert!(stream_of(endless).next().await.unwrap_err().contains("more than"));
    }

    #[tokio::test(start_paused = true)]
    async fn silent_stream_is_an_error() {
        let mut stream = stream_of([]);
        stream.data = Body::from_stream(stream::pending::<io::Result<Bytes>>()).into_data_stream();
        assert_eq!(stream.next().await.unwrap_err(), "no sample within 65 s");
    }
}
