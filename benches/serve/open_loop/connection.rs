//! The client's side of an HTTP/2 connection: only what the measured servers need.

use std::{
    collections::VecDeque,
    io::{self, Error, ErrorKind, Read, Write},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use tollgate_limiter::time::Stopwatch;

use super::{request::Request, stats::Stats};

/// Types and flags of frames, and identifiers of settings.
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const END_STREAM: u8 = 1;
    pub const ACK: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const STREAMS_MAX: u16 = 3;
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;
/// The table size that an encoder may use before the server's settings, and after them if they do not say less.
const TABLE: u32 = 4_096;
/// The window of the connection at its start, and what we add to ours.
const WINDOW: u32 = 65_535;
const WINDOW_MORE: u32 = 1 << 30;
/// Flag and length before each message: a reply has at least these bytes, an error has none.
const MESSAGE_MIN: usize = 5;

/// A call without its answer.
struct Call {
    due: Duration,
    data: usize,
}

/// Requests and answers of one connection.
pub struct Connection<'r> {
    socket: TcpStream,
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    waiting: VecDeque<(Duration, &'r Request)>,
    // By stream: the first one is `oldest`. `None`: ended.
    calls: VecDeque<Option<Call>>,
    oldest: u32,
    open: usize,
    streams_max: usize,
    // What the server allows us to send, and what we have not yet allowed it to send again.
    window: usize,
    received: u32,
    has_settings: bool,
}

impl AsFd for Connection<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Appends a frame.
pub fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, content: &[u8]) {
    out.extend_from_slice(&(content.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(content);
}

fn number(content: &[u8]) -> u32 {
    content.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

impl<'r> Connection<'r> {
    /// Connects and waits for the server's settings.
    pub fn open(to: &str) -> io::Result<Self> {
        let socket = TcpStream::connect(to)?;
        socket.set_nodelay(true)?;
        let mut output = PREFACE.to_vec();
        frame(&mut output, kind::SETTINGS, 0, 0, &[]);
        frame(&mut output, kind::WINDOW_UPDATE, 0, 0, &WINDOW_MORE.to_be_bytes());
        let mut connection = Self {
            socket,
            output,
            written: 0,
            input: Vec::new(),
            waiting: VecDeque::new(),
            calls: VecDeque::new(),
            oldest: 1,
            open: 0,
            streams_max: usize::MAX,
            window: WINDOW as usize,
            received: 0,
            has_settings: false,
        };
        let (start, mut stats) = (Stopwatch::start(), Stats::new(Duration::ZERO));
        while !connection.has_settings {
            connection.write(&start, &mut stats)?;
            connection.read(&start, &mut stats)?;
        }
        connection.socket.set_nonblocking(true)?;
        Ok(connection)
    }

    /// A request that is due now.
    pub fn queue(&mut self, due: Duration, request: &'r Request) {
        self.waiting.push_back((due, request));
    }

    /// Requests without their answer.
    pub fn backlog(&self) -> usize {
        self.waiting.len() + self.open
    }

    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Sends the requests that are due, as far as the server's limits and the socket allow.
    pub fn write(&mut self, start: &Stopwatch, stats: &mut Stats) -> io::Result<()> {
        while self.open < self.streams_max
            && let Some((due, request)) = self.waiting.front()
            && request.body.len() <= self.window
        {
            let stream = self.oldest + 2 * self.calls.len() as u32;
            request.encode(stream, stream == 1, &mut self.output);
            self.window -= request.body.len();
            self.open += 1;
            self.calls.push_back(Some(Call { due: *due, data: 0 }));
            stats.sent(*due, start.elapsed());
            self.waiting.pop_front();
        }
        while self.written < self.output.len() {
            match self.socket.write(&self.output[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads what has arrived.
    pub fn read(&mut self, start: &Stopwatch, stats: &mut Stats) -> io::Result<()> {
        let mut buffer = [0; 1 << 16];
        match self.socket.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => self.input.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        let now = start.elapsed();
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Some((header, after)) = rest.split_at_checked(FRAME_HEADER)
            && let Some((content, after)) = after.split_at_checked(number(&header[..3]) as usize)
        {
            self.receive(header[3], header[4], number(&header[5..]), content, now, stats)?;
            rest = after;
        }
        self.input = rest.to_vec();
        if self.received > WINDOW_MORE / 2 {
            let more = std::mem::take(&mut self.received).to_be_bytes();
            frame(&mut self.output, kind::WINDOW_UPDATE, 0, 0, &more);
        }
        Ok(())
    }

    fn receive(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        content: &[u8],
        now: Duration,
        stats: &mut Stats,
    ) -> io::Result<()> {
        match kind {
            kind::DATA => {
                self.received += content.len() as u32;
                if let Some(call) = self.call(stream) {
                    call.data += content.len();
                }
                self.end(flags, stream, now, stats);
            }
            kind::HEADERS => self.end(flags, stream, now, stats),
            kind::RST_STREAM => self.end(kind::END_STREAM, stream, now, stats),
            kind::SETTINGS if flags & kind::ACK == 0 => {
                self.apply(content)?;
                frame(&mut self.output, kind::SETTINGS, kind::ACK, 0, &[]);
            }
            kind::PING if flags & kind::ACK == 0 => {
                frame(&mut self.output, kind::PING, kind::ACK, 0, content);
            }
            kind::GOAWAY => return Err(Error::other("the server closes the connection")),
            kind::WINDOW_UPDATE if stream == 0 => self.window += number(content) as usize,
            _ => {}
        }
        Ok(())
    }

    fn apply(&mut self, settings: &[u8]) -> io::Result<()> {
        self.has_settings = true;
        for setting in settings.chunks_exact(6) {
            let value = number(&setting[2..]);
            match number(&setting[..2]) as u16 {
                kind::HEADER_TABLE_SIZE if value < TABLE => {
                    return Err(Error::other("the server's table of headers is too small"));
                }
                kind::STREAMS_MAX => self.streams_max = value as usize,
                _ => {}
            }
        }
        Ok(())
    }

    fn call(&mut self, stream: u32) -> Option<&mut Call> {
        let number = stream.checked_sub(self.oldest)? / 2;
        self.calls.get_mut(number as usize)?.as_mut()
    }

    fn end(&mut self, flags: u8, stream: u32, now: Duration, stats: &mut Stats) {
        if flags & kind::END_STREAM == 0 {
            return;
        }
        // A server may reset a stream after its answer.
        let Some(call) = self.call(stream) else { return };
        let (due, has_message) = (call.due, call.data >= MESSAGE_MIN);
        self.calls[((stream - self.oldest) / 2) as usize] = None;
        self.open -= 1;
        while let Some(None) = self.calls.front() {
            self.calls.pop_front();
            self.oldest += 2;
        }
        if has_message {
            stats.answered(due, now);
        } else {
            stats.failed(due);
        }
    }
}
