//! The fuzz target of gRPC connections.

use std::{sync::LazyLock, time::Duration};

use axum::Router;
use futures_util::future::join3;
use tokio::{
    io::{AsyncWriteExt, copy, duplex, sink, split},
    sync::watch,
    task::yield_now,
    time::{sleep, timeout},
};
use tollgate_counter::{resilience::CallerRegistry, time::Clock};

use crate::{
    api::fuzz::{api, runtime},
    server::{
        acceptor::{Alpn, ConnectionContext, Limits, ListenerTerms, Protocols},
        budgets::Budgets,
        components::grpc_routes,
        lifecycle::Phase,
        services::Services,
    },
    settings::{self, Settings, sources::SettingsSources, value_type::Setting},
};

/// Longer than the timeout of every step of a call, and than the age of a connection.
const TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
/// A client that waits this long for the replies has reached the timeout of an incomplete request.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// The parts in which the bytes arrive: all at once, or a few at a time.
const PARTS_BYTES: [usize; 2] = [usize::MAX, 7];

static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
    let rules = Setting::named("rules.path").expect("rules have a path");
    let sources = SettingsSources { flags: vec![(rules, "rules".to_owned())], ..SettingsSources::default() };
    sources.load().expect("the defaults are valid")
});

/// The services other than the rate limit service. To create them takes longer than to serve a connection.
static ROUTES: LazyLock<Router> = LazyLock::new(|| {
    let (_reporter, health) = tonic_health::server::health_reporter();
    grpc_routes(health).expect("the services are valid")
});

/// The bytes of an HTTP/2 connection: it ends, and leaves nothing in the budgets for requests and replies.
pub fn connection(bytes: &[u8]) {
    for part_bytes in PARTS_BYTES {
        let memory = settings::Memory { requests: 1 << 16, replies: 1 << 16 };
        let budgets = Budgets::new(&memory);
        runtime().block_on(serve(bytes, part_bytes, budgets.clone()));
        assert_eq!((budgets.requests.bytes(), budgets.replies.bytes()), (0, 0));
    }
}

async fn serve(bytes: &[u8], part_bytes: usize, budgets: Budgets) {
    let context = ConnectionContext {
        terms: ListenerTerms {
            name: "fuzz",
            certificates: None,
            protocols: Protocols::grpc(&SETTINGS.sections.grpc),
            limits: Limits::grpc(&SETTINGS.sections.grpc),
            budgets,
            stats: Default::default(),
            idle: None,
        },
        service: Services::new(ROUTES.clone(), api(), None, CallerRegistry::new(Clock::system())),
    };
    let service = context.service.for_connection(None, None, None);
    let (_phase, phases) = watch::channel(Phase::Serving);
    let (server, client) = duplex(1 << 16);
    let (mut replies, mut requests) = split(client);
    let write = async {
        for part in bytes.chunks(part_bytes) {
            if requests.write_all(part).await.is_err() {
                break;
            }
            yield_now().await;
        }
        sleep(REPLY_TIMEOUT).await;
        // The server may have closed the connection already.
        let _ = requests.shutdown().await;
    };
    let read = async {
        // The server may have closed the connection already.
        let _ = copy(&mut replies, &mut sink()).await;
    };
    let serving = context.serve_protocol(server, service, Alpn::Other, phases);
    timeout(TIMEOUT, join3(serving, write, read)).await.expect("the connection ends");
}
