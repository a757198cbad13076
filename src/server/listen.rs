//! Listening sockets: TCP and Unix.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixSocket, UnixStream},
    time::timeout,
};
use tokio_util::either::Either;
use tollgate_net::private_file;

use crate::settings::listeners::ListenAddress;

/// Time to wait for a connection to an existing Unix socket. After it the socket counts as in use.
const ALIVE_WITHIN: Duration = Duration::from_secs(1);
/// Listen backlog. The kernel lowers it to its own maximum (`net.core.somaxconn`).
const BACKLOG: u32 = i32::MAX as u32;

/// A TCP address that is bound and refuses connections, or a Unix socket that listens. Callers of a Unix socket have no
/// other address, so they wait.
#[derive(Debug)]
pub(super) enum BoundListener {
    Tcp(TcpSocket),
    Unix(SocketFile, UnixListener),
}

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    // The file is dropped first, so that no client connects to a socket that is about to close.
    Unix(SocketFile, UnixListener),
}

/// An accepted connection.
pub(super) type Socket = Either<TcpStream, UnixStream>;

/// A socket that belongs to no runtime, to be moved from one runtime to another.
pub(super) type DetachedSocket = Either<std::net::TcpStream, std::os::unix::net::UnixStream>;

/// Registers a socket with the current runtime.
pub(super) fn attach(socket: DetachedSocket) -> io::Result<Socket> {
    match socket {
        Either::Left(stream) => TcpStream::from_std(stream).map(Either::Left),
        Either::Right(stream) => UnixStream::from_std(stream).map(Either::Right),
    }
}

/// Deregisters a socket from its runtime.
pub(super) fn detach(socket: Socket) -> io::Result<DetachedSocket> {
    match socket {
        Either::Left(stream) => stream.into_std().map(Either::Left),
        Either::Right(stream) => stream.into_std().map(Either::Right),
    }
}

/// The address of the client; `None` for a Unix socket.
pub(super) fn peer(socket: &Socket) -> Option<SocketAddr> {
    match socket {
        Either::Left(stream) => stream.peer_addr().ok(),
        Either::Right(_) => None,
    }
}

impl BoundListener {
    /// Binds `address`. `mode` is the file mode of a Unix socket. A stale socket file is replaced.
    pub(super) async fn bind(address: &ListenAddress, mode: u32) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => {
                let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
                // Allows a restart to bind while connections of the previous process are in TIME_WAIT. It needs the
                // option on both sockets, so a port that the system chose has it too.
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                Ok(Self::Tcp(socket))
            }
            ListenAddress::Unix(path) => {
                vacant(path).await?;
                // The socket is created under a temporary name and renamed once its mode is set, so that it is never
                // accessible with another mode.
                let temporary = private_file::with_suffix(path, "new");
                remove_socket(&temporary)?;
                let socket = UnixSocket::new_stream()?;
                socket.bind(&temporary)?;
                let listener = socket.listen(BACKLOG)?;
                fs::set_permissions(&temporary, fs::Permissions::from_mode(mode))?;
                fs::rename(&temporary, path)?;
                Ok(Self::Unix(SocketFile::at(path)?, listener))
            }
        }
    }

    /// The local address, with the actual port if port 0 was requested.
    pub(super) fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(socket) => socket.local_addr().map(ListenAddress::Tcp),
            Self::Unix(file, _) => Ok(ListenAddress::Unix(file.path.clone())),
        }
    }

    /// Takes connections from here on. Fails if another process has bound the address at the same time and listens.
    pub(super) fn listen(self) -> io::Result<Listener> {
        match self {
            Self::Tcp(socket) => socket.listen(BACKLOG).map(Listener::Tcp),
            Self::Unix(file, listener) => Ok(Listener::Unix(file, listener)),
        }
    }
}

impl Listener {
    /// The local address, with the actual port if port 0 was requested.
    pub(super) fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
            Self::Unix(file, _) => Ok(ListenAddress::Unix(file.path.clone())),
        }
    }

    /// Accepts the next connection. Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // `set_nodelay` fails only if the client has already disconnected; the next read returns that error.
                let _ = stream.set_nodelay(true);
                Ok(Either::Left(stream))
            }
            Self::Unix(_, listener) => listener.accept().await.map(|(stream, _)| Either::Right(stream)),
        }
    }
}

/// The file of a listening Unix socket. Dropping it removes the file if the file is unchanged.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl SocketFile {
    fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), device_and_inode: device_and_inode(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if device_and_inode(&self.path).is_ok_and(|now| now == self.device_and_inode) {
            // If this fails, a stale socket file remains, which the next start replaces.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn device_and_inode(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Checks that a socket can be created at `path`: nothing exists there, or a stale socket.
async fn vacant(path: &Path) -> io::Result<()> {
    let in_use = |why: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, why.to_owned()));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(file) if !file.file_type().is_socket() => return in_use("the file exists and is not a socket"),
        Ok(_) => {}
    }
    match timeout(ALIVE_WITHIN, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(Ok(_) | Err(_)) | Err(_) => in_use("another process listens on it"),
    }
}

/// Removes the temporary socket file of an interrupted start.
fn remove_socket(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens `number` connections to a listener that accepts nothing.
    async fn connect<S: Send + 'static>(
        number: usize,
        connect: impl AsyncFn() -> io::Result<S>,
    ) -> Result<Vec<S>, tokio::time::error::Elapsed> {
        timeout(Duration::from_secs(20), async {
            let mut open = Vec::new();
            for _ in 0..number {
                open.push(connect().await.unwrap());
            }
            open
        })
        .await
    }

    fn system_maximum() -> usize {
        fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap()
    }

    #[tokio::test]
    async fn listen_backlog_is_system_maximum() {
        // More than the 128 of the standard library, and few enough file descriptors for a test.
        let number = system_maximum().min(500);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let any = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
        let tcp = BoundListener::bind(&any, 0).await.unwrap();
        let Ok(ListenAddress::Tcp(address)) = tcp.address() else { panic!("a port") };
        let refused = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "it is only bound");
        let _tcp = tcp.listen().unwrap();
        assert!(connect(number, async || TcpStream::connect(address).await).await.is_ok());
        let _unix = BoundListener::bind(&ListenAddress::Unix(path.clone()), 0o600).await.unwrap();
        assert!(connect(number, async || UnixStream::connect(&path).await).await.is_ok());
    }

    #[tokio::test]
    async fn port_is_bound_again_after_its_connections() {
        let bind = async |address| BoundListener::bind(&ListenAddress::Tcp(address), 0).await;
        let first = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let Ok(ListenAddress::Tcp(address)) = first.address() else { panic!("a port") };
        let first = first.listen().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), first.accept());
        assert!(bind(address).await.is_err(), "another socket listens");
        // The side that closes first keeps the address in TIME_WAIT.
        drop((first, accepted.unwrap()));
        drop(client.unwrap());

        let again = bind(address).await.unwrap();
        let second = bind(address).await.unwrap();

        let _again = again.listen().unwrap();
        assert_eq!(second.listen().unwrap_err().kind(), io::ErrorKind::AddrInUse, "one of them listens");
    }
}
