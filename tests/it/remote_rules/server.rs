//! A server of rules over HTTP/1.1, which answers as a test says.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpListener,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::certificates::{Authority, Pair};

/// An answer.
#[derive(Clone)]
pub enum Reply {
    /// A document with its `ETag`, or 304 to a request that has it.
    Document { etag: &'static str, text: String },
    /// These bytes, after which the connection is closed.
    Bytes(String),
    /// These bytes, after which the connection stays open.
    Stalled(String),
    /// These bytes again and again, until the client closes the connection.
    Flood(&'static str),
}

/// What follows the bytes of an answer.
#[derive(Clone, Copy)]
enum End {
    Close,
    Stall,
    Repeat,
}

impl Reply {
    /// A status with header lines and no body.
    pub fn status(status: &str, headers: &str) -> Self {
        Self::Bytes(format!("HTTP/1.1 {status}\r\n{headers}content-length: 0\r\n\r\n"))
    }

    /// 200 with header lines and a body.
    pub fn ok(headers: &str, body: &str) -> Self {
        Self::Bytes(format!("HTTP/1.1 200 OK\r\n{headers}\r\n{body}"))
    }

    fn to(&self, head: &str) -> (String, End) {
        match self {
            Self::Document { etag, .. } if head.contains(&format!("if-none-match: \"{etag}\"\r\n")) => {
                ("HTTP/1.1 304 Not Modified\r\n\r\n".to_owned(), End::Close)
            }
            Self::Document { etag, text } => {
                let length = text.len();
                let head = format!("HTTP/1.1 200 OK\r\netag: \"{etag}\"\r\ncontent-length: {length}\r\n\r\n");
                (head + text, End::Close)
            }
            Self::Bytes(bytes) => (bytes.clone(), End::Close),
            Self::Stalled(bytes) => (bytes.clone(), End::Stall),
            Self::Flood(bytes) => ((*bytes).to_owned(), End::Repeat),
        }
    }
}

/// A running server.
pub struct RulesServer {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    _tasks: JoinSet<()>,
}

struct State {
    reply: Reply,
    heads: Vec<String>,
}

impl RulesServer {
    pub async fn start(reply: Reply) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), reply, None).await
    }

    /// The same over TLS; with `clients`, only for clients with a certificate of that authority.
    pub async fn start_tls(reply: Reply, pair: &Pair, clients: Option<&Authority>) -> Self {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = match clients {
            None => config.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                config.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let chain = vec![CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
        let config = config.with_single_cert(chain, key).unwrap();
        Self::at("127.0.0.1:0".parse().unwrap(), reply, Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn at(address: SocketAddr, reply: Reply, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { reply, heads: Vec::new() }));
        let mut tasks = JoinSet::new();
        let shared = state.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (state, tls) = (shared.clone(), tls.clone());
                connections.spawn(async move {
                    match tls {
                        None => answer(stream, &state).await,
                        // A client that refuses the certificate closes the connection.
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                answer(stream, &state).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, state, _tasks: tasks }
    }

    /// Answers so from now on.
    pub fn answer(&self, reply: Reply) {
        self.state.lock().unwrap().reply = reply;
    }

    pub fn url(&self) -> String {
        format!("http://{}/rules.yaml", self.address)
    }

    /// The heads of all requests so far, in lower case.
    pub fn heads(&self) -> Vec<String> {
        self.state.lock().unwrap().heads.clone()
    }

    /// Whether a request after the first `seen` had this text in its head.
    pub fn was_asked_with(&self, seen: usize, text: &str) -> bool {
        self.heads().iter().skip(seen).any(|head| head.contains(text))
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, state: &Mutex<State>) {
    let (mut stream, mut head) = (BufReader::new(stream), String::new());
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let head = head.to_lowercase();
    let (bytes, end) = {
        let mut state = state.lock().unwrap();
        state.heads.push(head.clone());
        state.reply.to(&head)
    };
    // A client that has seen enough closes the connection.
    let mut written = stream.write_all(bytes.as_bytes()).await;
    while written.is_ok() && matches!(end, End::Repeat) {
        written = stream.write_all(bytes.as_bytes()).await;
    }
    let _ = stream.flush().await;
    if matches!(end, End::Stall) {
        std::future::pending::<()>().await;
    }
    let _ = stream.shutdown().await;
}
