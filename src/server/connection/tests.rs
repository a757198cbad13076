use axum::{
    Router,
    http::{Request, header},
    routing::any,
};
use hyper::body::Bytes;
use tokio::{sync::oneshot, task::JoinHandle, time::Instant};
use tollgate_counter::{resilience::CallerRegistry, time::Clock};

use super::*;
use crate::server::body::GRPC_CONTENT_TYPE;

const HOUR: Duration = Duration::from_secs(3_600);
/// Size of the response body: several windows.
const BODY_BYTES: usize = 100_000;

/// An empty message in its gRPC frame.
const EMPTY_MESSAGE: Bytes = Bytes::from_static(&[0; 5]);

fn grpc() -> Request<()> {
    Request::post("http://x/").header(header::CONTENT_TYPE, GRPC_CONTENT_TYPE).body(()).unwrap()
}

fn budgets() -> Budgets {
    Budgets::new(&crate::settings::Memory { requests: 1 << 24, replies: 1 << 24 })
}

fn service(router: Router) -> Arc<Services> {
    let callers = CallerRegistry::new(Clock::system());
    Services::new(router, crate::api::fuzz::api(), None, callers).for_connection(None, None, None)
}

/// A server and its client, whose streams have a window of `window` bytes.
async fn connect(
    router: Router,
    window: u32,
    keepalive: Keepalive,
) -> (h2::client::SendRequest<Bytes>, JoinHandle<Result<(), ConnectionError>>) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let service = service(router);
    let server = tokio::spawn(GrpcConnection::new(
        &Builder::new(),
        ours,
        IoHandle::default(),
        service,
        keepalive,
        &budgets(),
    ));
    let mut client = h2::client::Builder::new();
    let (client, connection) = client.initial_window_size(window).handshake(theirs).await.unwrap();
    tokio::spawn(connection);
    (client.ready().await.unwrap(), server)
}

#[tokio::test]
async fn long_response_follows_flow_control_windows() {
    let router = Router::new().fallback(any(async || vec![7; BODY_BYTES]));
    let (mut client, server) = connect(router, 1_000, Keepalive { interval: HOUR, timeout: HOUR }).await;
    let (answer, mut stream) = client.send_request(grpc(), false).unwrap();
    stream.send_data(EMPTY_MESSAGE, true).unwrap();
    let mut body = answer.await.unwrap().into_body();
    let mut got = 0;
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        assert!(chunk.len() <= 1_000 && chunk.iter().all(|byte| *byte == 7));
        got += chunk.len();
        body.flow_control().release_capacity(chunk.len()).unwrap();
    }
    assert_eq!(got, BODY_BYTES);
    drop((client, stream, body));
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn reset_call_is_cancelled() {
    /// Sends a message when it is dropped.
    struct NotifyOnDrop(Option<oneshot::Sender<()>>);
    impl Drop for NotifyOnDrop {
        fn drop(&mut self) {
            let _ = self.0.take().map(|sender| sender.send(()));
        }
    }
    let (begun, has_begun) = oneshot::channel();
    let (ended, has_ended) = oneshot::channel();
    let signals = Arc::new(std::sync::Mutex::new(Some((begun, NotifyOnDrop(Some(ended))))));
    let router = Router::new().fallback(any(move || {
        let (begun, notify) = signals.lock().unwrap().take().unwrap();
        async move {
            let _told = notify;
            begun.send(()).unwrap();
            std::future::pending::<()>().await;
        }
    }));
    let (mut client, _talk) = connect(router, 1_000, Keepalive { interval: HOUR, timeout: HOUR }).await;
    let (answer, mut stream) = client.send_request(grpc(), false).unwrap();
    stream.send_data(EMPTY_MESSAGE, true).unwrap();
    has_begun.await.unwrap();
    stream.send_reset(Reason::CANCEL);
    drop(answer);
    has_ended.await.unwrap();
}

#[tokio::test]
async fn ping_without_calls_is_acknowledged() {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let service = service(Router::new());
    let keepalive = Keepalive { interval: HOUR, timeout: HOUR };
    let io_handle = IoHandle::default();
    tokio::spawn(GrpcConnection::new(&Builder::new(), ours, io_handle, service, keepalive, &budgets()));
    let (_client, mut connection) = h2::client::handshake(theirs).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    tokio::spawn(connection);
    for _ in 0..2 {
        pings.ping(h2::Ping::opaque()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn client_without_ping_replies_is_disconnected() {
    let keepalive = Keepalive { interval: Duration::from_secs(60), timeout: Duration::from_secs(20) };
    let (_client, server) = connect(Router::new(), 1_000, keepalive).await;
    tokio::time::sleep(HOUR).await;
    assert!(!server.is_finished());

    let (ours, mut theirs) = tokio::io::duplex(1 << 16);
    let service = service(Router::new());
    let server =
        GrpcConnection::new(&Builder::new(), ours, IoHandle::default(), service, keepalive, &budgets());
    let handshake = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    tokio::io::AsyncWriteExt::write_all(&mut theirs, handshake).await.unwrap();
    let start = Instant::now();
    assert!(matches!(server.await, Err(ConnectionError::KeepaliveTimeout)));
    assert!(start.elapsed() <= 2 * keepalive.interval + keepalive.timeout + Duration::from_secs(1));
}
