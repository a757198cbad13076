//! A TCP proxy between two replicas that can be cut, stalled and closed.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// A proxy with its own address in front of one replica.
pub struct Proxy {
    pub address: SocketAddr,
    target: Arc<Mutex<Option<SocketAddr>>>,
    state: watch::Sender<State>,
    pub connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    cuts: u64,
    stalled: bool,
}

impl Proxy {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, target) = (watch::Sender::new(State { cuts: 0, stalled: false }), Arc::default());
        let connections = Arc::default();
        let task =
            tokio::spawn(serve(listener, Arc::clone(&target), state.clone(), Arc::clone(&connections)));
        Self { address, target, state, connections, task }
    }

    /// Sets the address to which new connections are forwarded.
    pub fn set_target(&self, target: SocketAddr) {
        *self.target.lock().unwrap() = Some(target);
    }

    /// Resets every connection.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Forwards nothing, and keeps every connection open.
    pub fn stall(&self) {
        self.state.send_modify(|state| state.stalled = true);
    }

    /// Forwards again.
    pub fn resume(&self) {
        self.state.send_modify(|state| state.stalled = false);
    }

    /// Refuses new connections and breaks the open ones.
    pub fn close(&self) {
        self.task.abort();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    target: Arc<Mutex<Option<SocketAddr>>>,
    state: watch::Sender<State>,
    connections: Arc<AtomicUsize>,
) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = open.join_next() => {}
            accepted = listener.accept() => {
                let Ok((downstream, _)) = accepted else { continue };
                connections.fetch_add(1, SeqCst);
                let target = *target.lock().unwrap();
                open.spawn(forward(downstream, target, state.subscribe()));
            }
        }
    }
}

async fn forward(mut downstream: TcpStream, target: Option<SocketAddr>, mut state: watch::Receiver<State>) {
    let cuts = state.borrow().cuts;
    let mut cut = state.clone();
    let mut connected = None;
    let passing = async {
        let is_flowing = |state: &State| !state.stalled;
        let _ = state.wait_for(is_flowing).await;
        let Some(target) = target else { return };
        let Ok(upstream) = TcpStream::connect(target).await else { return };
        let upstream = connected.insert(upstream);
        let _ = downstream.set_nodelay(true);
        let _ = upstream.set_nodelay(true);
        let ((downstream_in, downstream_out), (upstream_in, upstream_out)) =
            (downstream.split(), upstream.split());
        tokio::select! {
            () = pump(downstream_in, upstream_out, state.clone()) => {}
            () = pump(upstream_in, downstream_out, state.clone()) => {}
        }
    };
    tokio::select! {
        () = passing => {}
        _ = cut.wait_for(|state| state.cuts != cuts) => {
            // Both sides get a reset, and lose what is in flight.
            [Some(downstream), connected].into_iter().flatten().for_each(|socket| socket.set_zero_linger().unwrap());
        }
    }
}

async fn pump(mut from: tcp::ReadHalf<'_>, mut to: tcp::WriteHalf<'_>, mut state: watch::Receiver<State>) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let _ = state.wait_for(|state| !state.stalled).await;
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        let _ = state.wait_for(|state| !state.stalled).await;
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
