//! Lines of bounded length.

use std::io::{self, BufRead, Read as _};

/// The maximum length of a line: 1 MiB.
const LINE_MAX: usize = 1 << 20;

/// The lines of a text, with their numbers.
pub(super) struct Lines<R> {
    bytes: R,
    /// The number of the last line, from 1.
    pub(super) number: u64,
    line: Vec<u8>,
}

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'l> {
    /// The text of the line, without the end of line.
    Text(&'l str),
    /// The line cannot be used, for this reason.
    Bad(&'static str),
    /// There are no more lines.
    End,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(bytes: R) -> Self {
        Self { bytes, number: 0, line: Vec::new() }
    }

    /// The next line. An error has the number of the line that could not be read.
    pub(super) fn next(&mut self) -> Result<Line<'_>, (u64, io::Error)> {
        self.number += 1;
        self.line.clear();
        let failed = |error| (self.number, error);
        // One byte more than allowed: the end of the line, or a sign that the line is too long.
        let mut start = (&mut self.bytes).take(LINE_MAX as u64 + 1);
        if start.read_until(b'\n', &mut self.line).map_err(failed)? == 0 {
            return Ok(Line::End);
        }
        match self.line.strip_suffix(b"\n") {
            Some(line) => Ok(text(line, self.number)),
            None if self.line.len() <= LINE_MAX => Ok(text(&self.line, self.number)),
            None => {
                self.bytes.skip_until(b'\n').map_err(failed)?;
                Ok(Line::Bad("the line is longer than 1 MiB"))
            }
        }
    }
}

fn text(line: &[u8], number: u64) -> Line<'_> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    // Some programs begin a text with a byte order mark.
    let line = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| number == 1).unwrap_or(line);
    std::str::from_utf8(line).map_or(Line::Bad("the line is not UTF-8"), Line::Text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Vec<String> {
        let mut lines = Lines::new(io::BufReader::with_capacity(3, text));
        let mut all = Vec::new();
        loop {
            match lines.next().unwrap() {
                Line::Text(text) => all.push(text.to_owned()),
                Line::Bad(why) => all.push(format!("bad: {why}")),
                Line::End => return all,
            }
        }
    }

    #[test]
    fn lines_end_with_either_end_or_with_the_text() {
        assert_eq!(read(b"\xef\xbb\xbfone\r\ntwo\n\nlast"), ["one", "two", "", "last"]);
        assert_eq!(read(b""), [""; 0]);
    }

    #[test]
    fn long_and_invalid_lines_are_bad_and_the_next_is_read() {
        let long = [vec![b'x'; LINE_MAX + 1], b"\n\xff\nok\n".to_vec()].concat();
        let bad = ["bad: the line is longer than 1 MiB", "bad: the line is not UTF-8", "ok"];
        assert_eq!(read(&long), bad);
    }
}
