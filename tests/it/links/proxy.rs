//! A stretch of network between two processes that can be cut, stalled and closed.

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

/// Leads to one process, by an address of its own.
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

    /// Leads to this address from here on.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.target.lock().unwrap() = Some(target);
    }

    /// Breaks every connection.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Lets nothing through, and breaks nothing.
    pub fn stall(&self) {
        self.state.send_modify(|state| state.stalled = true);
    }

    /// Lets everything through again.
    pub fn flow(&self) {
        self.state.send_modify(|state| state.stalled = false);
    }

    /// Refuses connections and breaks those that are open.
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
                let Ok((near, _)) = accepted else { continue };
                connections.fetch_add(1, SeqCst);
                let target = *target.lock().unwrap();
                open.spawn(carry(near, target, state.subscribe()));
            }
        }
    }
}

async fn carry(near: TcpStream, target: Option<SocketAddr>, mut state: watch::Receiver<State>) {
    let cuts = state.borrow().cuts;
    let mut cut = state.clone();
    let passing = async {
        let flows = |state: &State| !state.stalled;
        state.wait_for(flows).await.ok();
        let Some(target) = target else { return };
        let Ok(far) = TcpStream::connect(target).await else { return };
        near.set_nodelay(true).ok();
        far.set_nodelay(true).ok();
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        tokio::select! {
            () = pump(near_in, far_out, state.clone()) => {}
            () = pump(far_in, near_out, state.clone()) => {}
        }
    };
    tokio::select! {
        () = passing => {}
        _ = cut.wait_for(|state| state.cuts != cuts) => {}
    }
}

async fn pump(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, mut state: watch::Receiver<State>) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        state.wait_for(|state| !state.stalled).await.ok();
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        state.wait_for(|state| !state.stalled).await.ok();
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
