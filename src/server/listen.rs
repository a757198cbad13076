//! Where connections come from: a port, or a socket in the file system.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixSocket, UnixStream},
    time::timeout,
};

use crate::settings::Address;

/// How long another process may take to accept, before its socket counts as live all the same.
const ALIVE_WITHIN: Duration = Duration::from_secs(1);
/// Connections that the system keeps until they are accepted. The kernel lowers it to its own maximum
/// (`net.core.somaxconn`).
const BACKLOG: u32 = i32::MAX as u32;

/// Takes connections.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    // The file goes first, so that nobody connects to a socket that is about to close.
    Unix(SocketFile, UnixListener),
}

/// A connection as it comes, before any of its bytes are read.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection on its way from one runtime to another.
#[derive(Debug)]
pub(super) enum DetachedSocket {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl DetachedSocket {
    /// The connection, from now on of the runtime that this is called in.
    pub(super) fn attach(self) -> io::Result<Socket> {
        match self {
            Self::Tcp(stream) => TcpStream::from_std(stream).map(Socket::Tcp),
            Self::Unix(stream) => UnixStream::from_std(stream).map(Socket::Unix),
        }
    }
}

impl Socket {
    /// Leaves the runtime that it is of.
    pub(super) fn detach(self) -> io::Result<DetachedSocket> {
        match self {
            Self::Tcp(stream) => stream.into_std().map(DetachedSocket::Tcp),
            Self::Unix(stream) => stream.into_std().map(DetachedSocket::Unix),
        }
    }

    /// The address of the client, where it has one.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Unix(_) => None,
        }
    }
}

impl Listener {
    /// Takes `address`. `mode` is of the file where that is a Unix socket; a file that a dead process has
    /// left is replaced.
    pub(super) async fn bind(address: &Address, mode: u32) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
                // A restart takes the port although connections of the last process are not forgotten yet.
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                Ok(Self::Tcp(socket.listen(BACKLOG)?))
            }
            Address::Unix(path) => {
                vacant(path).await?;
                // Made beside its place and moved there once its mode is right: until then nobody knows it.
                let mut beside = path.as_os_str().to_owned();
                beside.push(".new");
                let beside = PathBuf::from(beside);
                remove_socket(&beside)?;
                let socket = UnixSocket::new_stream()?;
                socket.bind(&beside)?;
                let listener = socket.listen(BACKLOG)?;
                fs::set_permissions(&beside, fs::Permissions::from_mode(mode))?;
                fs::rename(&beside, path)?;
                Ok(Self::Unix(SocketFile::at(path)?, listener))
            }
        }
    }

    /// Where it listens, with the port that port 0 has become.
    pub(super) fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix(file, _) => Ok(Address::Unix(file.path.clone())),
        }
    }

    /// The next connection. May be dropped while it waits, and loses none.
    pub(super) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // It fails only where the client is gone already, which reading will tell.
                stream.set_nodelay(true).ok();
                Ok(Socket::Tcp(stream))
            }
            Self::Unix(_, listener) => listener.accept().await.map(|(stream, _)| Socket::Unix(stream)),
        }
    }
}

/// The file of a socket that we listen on; removed with this, if it is still ours.
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
            // Nothing is left to do if that fails: the next process finds a socket that nobody listens on.
            fs::remove_file(&self.path).ok();
        }
    }
}

fn device_and_inode(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Whether a socket can be put at `path`: nothing is there, or one that nobody listens on.
async fn vacant(path: &Path) -> io::Result<()> {
    let in_use = |why: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, why.to_owned()));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(file) if !file.file_type().is_socket() => return in_use("there is a file that is no socket"),
        Ok(_) => {}
    }
    match timeout(ALIVE_WITHIN, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(Ok(_) | Err(_)) | Err(_) => in_use("another process listens on it"),
    }
}

/// Removes what an earlier start may have left half-way.
fn remove_socket(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    Ok(())
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connects so many times to a listener that accepts nothing, until all connections are established.
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
    async fn listen_backlog_is_the_maximum_of_the_system() {
        // More than the 128 of the standard library, and no more file descriptors than a test should take.
        let number = system_maximum().min(500);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let tcp = Listener::bind(&Address::Tcp("127.0.0.1:0".parse().unwrap()), 0).await.unwrap();
        let Ok(Address::Tcp(address)) = tcp.address() else { panic!("a port") };
        assert!(connect(number, async || TcpStream::connect(address).await).await.is_ok());
        let _unix = Listener::bind(&Address::Unix(path.clone()), 0o600).await.unwrap();
        assert!(connect(number, async || UnixStream::connect(&path).await).await.is_ok());
    }
}
