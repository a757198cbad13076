//! The frames of a link and their codec: a length of four bytes, the kind and the fields by `postcard`, and the payload
//! of a piece behind them. A reader skips a frame of a kind that it does not know and ignores bytes behind the fields, so
//! a later version may append kinds and fields.

use std::io::{self, ErrorKind};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::{
    bytes::{BufMut, Bytes, BytesMut},
    codec::{Decoder, Encoder, Framed, LengthDelimitedCodec},
};

use crate::member::MemberId;

/// The largest piece of a batch, so that acknowledgements and heartbeats can be written in between.
pub(super) const PIECE_BYTES_MAX: usize = 256 * 1024;
/// The largest frame without its length, in bytes.
const FRAME_BYTES_MAX: usize = PIECE_BYTES_MAX + 1024;
/// The bytes of the length.
pub(super) const LENGTH_BYTES: usize = 4;
/// Frames are collected up to this many bytes, so that one write serves them.
const WRITE_BYTES: usize = 64 * 1024;

/// A message of one side of a link. The dialled side sends a greeting, then each side sends a hello, then pieces flow
/// both ways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LinkFrame {
    /// The dialled process.
    Greeting(MemberId),
    Hello(LinkHello),
    Piece(Piece),
    /// A heartbeat of an idle link, with the number of the last received piece.
    Heartbeat(u64),
    /// The process leaves; no frame follows.
    Goodbye,
    /// The link is refused.
    Refusal(RefusalReason),
}

/// Identifies the sender and its state of the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LinkHello {
    pub(super) member: MemberId,
    /// The advertised address of the sender: `HOST:PORT`.
    pub(super) address: String,
    /// The sender's number of the session. A later session has a larger number. Never 0.
    pub(super) session: u64,
    /// The receiver's number of the session as the sender knows it; 0 if it knows none.
    pub(super) known_session: u64,
    /// The number of the last received piece; sending resumes with the next one.
    pub(super) received: u64,
    /// The sender lost the link because of which the receiver refused its last connection.
    pub(super) replaces_link: bool,
}

/// A batch or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    /// The number of the piece, from 1 over the whole session.
    pub(super) number: u64,
    /// The number of the last received piece.
    pub(super) received: u64,
    /// More pieces of the same batch follow.
    pub(super) has_more: bool,
    #[serde(skip)]
    pub(super) payload: Bytes,
}

/// Why a link is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RefusalReason {
    /// A link that is preferred to the refused one is active.
    Linked,
    /// The session of the hello has ended.
    Stale,
    /// The process leaves or has too many peers.
    Closed,
}

impl LinkFrame {
    /// Whether the buffer of the frame is worth to be freed.
    pub(super) fn is_large(&self) -> bool {
        matches!(self, Self::Piece(piece) if piece.payload.len() > WRITE_BYTES)
    }
}

/// The frames of one connection.
pub(super) type FrameStream<S> = Framed<S, FrameCodec>;

/// The frames of a connection over these bytes.
pub(super) fn frame_stream<S: AsyncRead + AsyncWrite>(stream: S) -> FrameStream<S> {
    let mut frames = Framed::new(stream, FrameCodec::default());
    frames.set_backpressure_boundary(WRITE_BYTES);
    frames
}

/// Reads and writes frames.
#[derive(Debug)]
pub(super) struct FrameCodec(LengthDelimitedCodec);

impl Default for FrameCodec {
    fn default() -> Self {
        Self(LengthDelimitedCodec::builder().max_frame_length(FRAME_BYTES_MAX).new_codec())
    }
}

impl Decoder for FrameCodec {
    type Item = LinkFrame;
    type Error = io::Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> io::Result<Option<LinkFrame>> {
        while let Some(frame) = self.0.decode(bytes)? {
            let known = decode(&frame.freeze())?;
            if known.is_some() {
                return Ok(known);
            }
        }
        Ok(None)
    }
}

/// Decodes a frame without its length; `None` if its kind is not known.
fn decode(bytes: &Bytes) -> io::Result<Option<LinkFrame>> {
    match postcard::take_from_bytes(bytes) {
        Ok((LinkFrame::Piece(piece), payload)) => {
            Ok(Some(LinkFrame::Piece(Piece { payload: bytes.slice_ref(payload), ..piece })))
        }
        Ok((frame, _)) => Ok(Some(frame)),
        // The bytes are complete but name no existing value.
        Err(postcard::Error::SerdeDeCustom) => Ok(None),
        Err(_) => Err(io::Error::new(ErrorKind::InvalidData, "a frame is damaged")),
    }
}

// The codec of lengths would need the frame in one piece, so a payload would be copied twice.
impl Encoder<LinkFrame> for FrameCodec {
    type Error = io::Error;

    fn encode(&mut self, frame: LinkFrame, bytes: &mut BytesMut) -> io::Result<()> {
        let start = bytes.len();
        bytes.put_bytes(0, LENGTH_BYTES);
        postcard::to_io(&frame, bytes.writer()).expect("memory grows as needed, and every length is known");
        if let LinkFrame::Piece(piece) = &frame {
            bytes.extend_from_slice(&piece.payload);
        }
        let length = bytes.len() - start - LENGTH_BYTES;
        match u32::try_from(length) {
            Ok(written) if length <= FRAME_BYTES_MAX => {
                bytes[start..start + LENGTH_BYTES].copy_from_slice(&written.to_be_bytes());
                Ok(())
            }
            Ok(_) | Err(_) => {
                bytes.truncate(start);
                Err(io::Error::new(ErrorKind::InvalidInput, format!("a frame has {length} bytes")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> LinkHello {
        let (member, address) = (MemberId::from_number(300), "a:1".to_owned());
        LinkHello { member, address, session: 1, known_session: 2, received: 3, replaces_link: true }
    }

    fn piece(length: usize) -> LinkFrame {
        LinkFrame::Piece(Piece { number: 300, received: 2, has_more: true, payload: vec![7; length].into() })
    }

    fn encoded(frame: LinkFrame) -> BytesMut {
        let mut bytes = BytesMut::new();
        FrameCodec::default().encode(frame, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn encoding_of_each_frame_is_stable() {
        for (frame, bytes) in [
            (LinkFrame::Greeting(MemberId::from_number(300)), "0000000300ac02"),
            (LinkFrame::Hello(hello()), "0000000b01ac0203613a3101020301"),
            (piece(3), "0000000802ac020201070707"),
            (LinkFrame::Heartbeat(300), "0000000303ac02"),
            (LinkFrame::Goodbye, "0000000104"),
            (LinkFrame::Refusal(RefusalReason::Linked), "000000020500"),
            (LinkFrame::Refusal(RefusalReason::Stale), "000000020501"),
            (LinkFrame::Refusal(RefusalReason::Closed), "000000020502"),
        ] {
            let mut encoded = encoded(frame.clone());
            let hex: String = encoded.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, bytes, "{frame:?}");
            assert_eq!(FrameCodec::default().decode(&mut encoded).unwrap(), Some(frame));
        }
    }

    #[test]
    fn frame_of_unknown_kind_and_bytes_behind_fields_are_skipped() {
        let mut bytes = BytesMut::from(&b"\0\0\0\x03\x06ab\0\0\0\x03\x03\x05x\0\0\0\x01"[..]);
        let mut codec = FrameCodec::default();
        assert_eq!(codec.decode(&mut bytes).unwrap(), Some(LinkFrame::Heartbeat(5)));
        assert_eq!(codec.decode(&mut bytes).unwrap(), None, "the last frame is incomplete");
    }

    #[test]
    fn damaged_or_too_long_frame_is_error() {
        let too_long = u32::try_from(FRAME_BYTES_MAX + 1).unwrap().to_be_bytes();
        for bytes in [&b"\0\0\0\0"[..], b"\0\0\0\x01\x03", b"\0\0\0\x03\x01\x01\x09", &too_long] {
            let error = FrameCodec::default().decode(&mut BytesMut::from(bytes)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{bytes:?}");
        }
    }

    #[test]
    fn frame_above_bound_is_not_written() {
        let mut bytes = encoded(LinkFrame::Goodbye);
        let mut codec = FrameCodec::default();
        let error = codec.encode(piece(FRAME_BYTES_MAX), &mut bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(bytes, encoded(LinkFrame::Goodbye));
        codec.encode(piece(PIECE_BYTES_MAX), &mut bytes).unwrap();
    }
}
