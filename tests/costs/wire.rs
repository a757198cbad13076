//! A minimal HTTP/2 client that sends calls without allocating.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of a frame header in bytes.
const HEAD: usize = 9;

// Frame types and flags.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A connection.
pub struct Client {
    stream: TcpStream,
    next_stream: u32,
    headers: Vec<u8>,
    out: Vec<u8>,
    incoming: Vec<u8>,
}

impl Client {
    /// Connects and opens the connection window.
    pub async fn connect(address: &str) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true).unwrap();
        let mut preface = PREFACE.to_vec();
        frame(&mut preface, SETTINGS, 0, 0, &[]);
        let window = (1_u32 << 31) - 1 - 65_535;
        frame(&mut preface, WINDOW_UPDATE, 0, 0, &window.to_be_bytes());
        stream.write_all(&preface).await.unwrap();
        // POST and http as indices into the static table, the others as literals.
        let mut headers = vec![0x83, 0x86, 0x04];
        text(&mut headers, METHOD);
        headers.push(0x01);
        text(&mut headers, "x");
        headers.extend([0x0f, 0x10]);
        text(&mut headers, "application/grpc");
        headers.push(0x00);
        text(&mut headers, "te");
        text(&mut headers, "trailers");
        let (out, incoming) = (Vec::with_capacity(1 << 16), Vec::with_capacity(1 << 16));
        Ok(Self { stream, next_stream: 1, headers, out, incoming })
    }

    /// Sends the same message in `calls` concurrent calls. Returns the message of the reply if `calls` is 1, otherwise
    /// an empty one. `None` if the connection ends.
    pub async fn call(&mut self, message: &[u8], calls: usize) -> Option<Vec<u8>> {
        self.out.clear();
        for _ in 0..calls {
            frame(&mut self.out, HEADERS, END_HEADERS, self.next_stream, &self.headers);
            let length = 5 + message.len();
            head(&mut self.out, length, DATA, END_STREAM, self.next_stream);
            self.out.push(0);
            self.out.extend((message.len() as u32).to_be_bytes());
            self.out.extend(message);
            self.next_stream += 2;
        }
        self.stream.write_all(&self.out).await.ok()?;
        let (mut ended, mut answer) = (0, None);
        while ended < calls {
            if self.stream.read_buf(&mut self.incoming).await.ok()? == 0 {
                return None;
            }
            let mut at = 0;
            while let Some([high, middle, low, kind, flags, ..]) = self.incoming.get(at..at + HEAD) {
                let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
                let Some(held) = self.incoming.get(at + HEAD..at + HEAD + length) else { break };
                match *kind {
                    GOAWAY => return None,
                    DATA if calls == 1 => answer = Some(held[5..].to_vec()),
                    _another => {}
                }
                if [DATA, HEADERS].contains(kind) && flags & END_STREAM != 0 {
                    ended += 1;
                }
                at += HEAD + length;
            }
            self.incoming.drain(..at);
        }
        Some(answer.unwrap_or_default())
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, held: &[u8]) {
    head(out, held.len(), kind, flags, stream);
    out.extend(held);
}

fn head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    out.extend(&(length as u32).to_be_bytes()[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
}

fn text(headers: &mut Vec<u8>, text: &str) {
    headers.push(u8::try_from(text.len()).unwrap());
    headers.extend(text.as_bytes());
}
