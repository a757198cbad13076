//! The frames of a request.

use super::connection::{frame, kind};

/// The entries of the static table that are used as they are, and those whose name is used.
const METHOD_GET: u8 = 2;
const METHOD_POST: u8 = 3;
const SCHEME_HTTP: u8 = 6;
const AUTHORITY: u8 = 1;
const PATH: u8 = 4;
const CONTENT_TYPE: u8 = 31;
/// A literal with a name of the static table that is added to the dynamic table: its first bits.
const INDEXED: u8 = 0x40;
/// The first entry of the dynamic table, which is the newest.
const NEWEST: u8 = 62;

/// A request, encoded: the client adds four fields to the table of each connection with its first request
/// ([`Request::opening`]), and refers to them afterwards, as any client does.
pub struct Request {
    pub opening: Vec<u8>,
    pub later: Vec<u8>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn new(authority: &str, path: &str, body: &str) -> Self {
        let body: Vec<u8> =
            (0..body.len()).step_by(2).map(|at| u8::from_str_radix(&body[at..at + 2], 16).unwrap()).collect();
        let method = if body.is_empty() { METHOD_GET } else { METHOD_POST };
        let start = [0x80 | method, 0x80 | SCHEME_HTTP];
        let path = [&[PATH][..], &string(path)].concat();
        let opening = [
            &start[..],
            &path,
            &[INDEXED | AUTHORITY],
            &string(authority),
            &[INDEXED | CONTENT_TYPE],
            &string("application/grpc"),
            &[INDEXED],
            &string("te"),
            &string("trailers"),
        ]
        .concat();
        let known = [0x80 | (NEWEST + 2), 0x80 | (NEWEST + 1), 0x80 | NEWEST];
        Self { opening, later: [&start[..], &path, &known].concat(), body }
    }

    /// Appends the frames of this request.
    pub fn encode(&self, stream: u32, opens: bool, out: &mut Vec<u8>) {
        let block = if opens { &self.opening } else { &self.later };
        let end = if self.body.is_empty() { kind::END_STREAM } else { 0 };
        frame(out, kind::HEADERS, kind::END_HEADERS | end, stream, block);
        if !self.body.is_empty() {
            frame(out, kind::DATA, kind::END_STREAM, stream, &self.body);
        }
    }
}

/// A string without Huffman coding.
fn string(text: &str) -> Vec<u8> {
    assert!(text.len() < 127, "a longer text needs another length");
    [&[text.len() as u8], text.as_bytes()].concat()
}
