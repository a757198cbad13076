//! Reads the YAML that most files consist of: one document of block or flow collections with scalars on one line, in
//! printable ASCII. It takes 0.08 s for 100,000 rules, and the parser of all YAML 0.33 s for its events alone.
//!
//! Whatever else a text contains, and every mistake, is left to that parser: the reader then returns `None`. What it
//! does read, it reads as that parser does; tests and the fuzz target of rule files compare both.

use std::borrow::Cow;

use crate::yaml::{
    DEPTH_MAX, Mark, Scalar, WEIGHT_MAX, YamlNode, YamlPair, YamlValue, duplicates, is_key, weight_of,
};

/// The maximum length of a key, far below that of YAML.
const KEY_BYTES_MAX: usize = 256;

/// The one document of `text`; `None` if it is not as simple, or has a mistake.
pub(super) fn load(text: &str) -> Option<YamlNode<'_>> {
    // Without an early end, the compiler looks at many bytes at once.
    let is_simple = |byte: &u8| *byte == b'\n' || matches!(byte, b' '..=b'~');
    if !text.as_bytes().iter().fold(true, |all, byte| all & is_simple(byte)) {
        return None;
    }
    let mut reader = SimpleYamlReader {
        text,
        at: 0,
        line: 1,
        line_start: 0,
        weight: 0,
        pairs: Vec::new(),
        nodes: Vec::new(),
    };
    reader.document()
}

/// A text and the position in it.
struct SimpleYamlReader<'t> {
    text: &'t str,
    at: usize,
    line: u32,
    line_start: usize,
    weight: usize,
    // The pairs and nodes of open collections, those of the innermost last.
    pairs: Vec<YamlPair<'t>>,
    nodes: Vec<YamlNode<'t>>,
}

/// Where the lines of a block collection begin.
#[derive(Clone, Copy)]
struct Indent {
    // `None` around the root.
    parent: Option<usize>,
    depth: usize,
}

impl Indent {
    fn inner(self, parent: usize) -> Self {
        Self { parent: Some(parent), depth: self.depth + 1 }
    }
}

impl<'t> SimpleYamlReader<'t> {
    fn document(&mut self) -> Option<YamlNode<'t>> {
        self.skip_blank()?;
        let starts_collection =
            matches!(self.peek()?, b'{' | b'[') || self.is_entry() || self.key_end().is_some();
        if !starts_collection {
            return None;
        }
        let node = self.block(Indent { parent: None, depth: 0 })?;
        self.skip_blank()?;
        self.peek().is_none().then_some(node)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'t [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn column(&self) -> usize {
        self.at - self.line_start
    }

    /// Both fit in a `u32`: no text has more than `BYTES_MAX` bytes.
    fn mark(&self) -> Mark {
        Mark { line: self.line, column: self.column() as u32 + 1 }
    }

    fn add_weight(&mut self, weight: usize) -> Option<()> {
        self.weight += weight;
        (self.weight <= WEIGHT_MAX).then_some(())
    }

    fn skip_spaces(&mut self) {
        self.at += self.rest().iter().take_while(|byte| **byte == b' ').count();
    }

    /// Whether nothing but a comment is left of the line.
    fn is_line_end(&self) -> bool {
        matches!(self.peek(), None | Some(b'\n' | b'#'))
    }

    /// Skips spaces, lines and comments. `None` before what begins or ends a document, and a comment without a space.
    fn skip_blank(&mut self) -> Option<()> {
        loop {
            self.skip_spaces();
            match self.peek() {
                Some(b'#') if self.at > 0 && !matches!(self.text.as_bytes()[self.at - 1], b' ' | b'\n') => {
                    return None;
                }
                Some(b'#') => self.at += self.rest().iter().take_while(|byte| **byte != b'\n').count(),
                Some(b'\n') => {
                    self.at += 1;
                    self.line += 1;
                    self.line_start = self.at;
                }
                _token
                    if self.column() == 0
                        && matches!(
                            self.rest(),
                            [b'-', b'-', b'-', ..] | [b'.', b'.', b'.', ..] | [b'%', ..]
                        ) =>
                {
                    return None;
                }
                _token => return Some(()),
            }
        }
    }

    /// Whether an entry of a block list begins here.
    fn is_entry(&self) -> bool {
        matches!(self.rest(), [b'-'] | [b'-', b' ' | b'\n', ..])
    }

    /// A node that begins here, in a block collection.
    fn block(&mut self, indent: Indent) -> Option<YamlNode<'t>> {
        // The parser of all YAML reports what is nested too deep.
        if indent.depth + 1 >= DEPTH_MAX {
            return None;
        }
        if self.is_entry() {
            return self.block_list(indent);
        }
        if let Some(end) = self.key_end() {
            return self.block_mapping(indent, end);
        }
        self.block_value(indent)
    }

    /// A value that ends on its line, or with the root.
    fn block_value(&mut self, indent: Indent) -> Option<YamlNode<'t>> {
        let line = self.line;
        let node = match self.peek()? {
            b'{' | b'[' => self.flow(indent.depth + 1)?,
            b'"' | b'\'' => self.quoted()?,
            _plain => self.plain(block_scalar_length)?,
        };
        let is_whole = line == self.line || indent.parent.is_none();
        self.skip_spaces();
        (is_whole && self.is_line_end()).then_some(node)
    }

    fn block_list(&mut self, indent: Indent) -> Option<YamlNode<'t>> {
        let mark = self.mark();
        let column = self.column();
        let first = self.nodes.len();
        self.add_weight(1)?;
        while self.is_entry() && self.column() == column {
            self.at += 1;
            self.skip_spaces();
            if self.is_line_end() {
                return None;
            }
            let node = self.block(indent.inner(column))?;
            self.nodes.push(node);
            self.skip_blank()?;
        }
        self.ends_block(column, indent)?;
        Some(YamlNode { mark, value: YamlValue::List(self.nodes.drain(first..).collect()) })
    }

    /// `None` unless what follows a collection belongs to one around it.
    fn ends_block(&self, column: usize, indent: Indent) -> Option<()> {
        let is_outside = self.peek().is_none() || self.column() < column;
        // The entries of a list in a mapping may begin where the keys of the mapping do.
        let is_next_key = indent.parent == Some(column) && self.column() == column;
        (is_outside || is_next_key).then_some(())
    }

    /// The mapping whose first key begins here and has this length.
    fn block_mapping(&mut self, indent: Indent, first_key: usize) -> Option<YamlNode<'t>> {
        let mark = self.mark();
        let column = self.column();
        let first = self.pairs.len();
        let mut length = Some(first_key);
        self.add_weight(1)?;
        while self.peek().is_some() && self.column() == column {
            let (key, mark) = self.key(length.take().or_else(|| self.key_end())?)?;
            let line = self.line;
            self.skip_blank()?;
            let is_list_beside = self.line > line && self.is_entry() && self.column() == column;
            let value = if is_list_beside {
                let list = self.block_list(indent.inner(column))?;
                // As the parser of all YAML says: such a list begins with its first item.
                let YamlValue::List(items) = &list.value else { return None };
                YamlNode { mark: items.first()?.mark, value: list.value }
            } else if self.peek().is_none() || self.line > line && self.column() <= column {
                self.add_weight(1)?;
                YamlNode { mark, value: YamlValue::Scalar(Scalar { text: "".into(), quoted: false }) }
            } else if self.line > line {
                self.block(indent.inner(column))?
            } else {
                self.block_value(indent.inner(column))?
            };
            self.pairs.push(YamlPair { key, mark, value });
            self.skip_blank()?;
        }
        (self.peek().is_none() || self.column() < column).then_some(())?;
        self.mapping(mark, first)
    }

    /// The mapping of the pairs from `first` on. `None` if two of them have the same key.
    fn mapping(&mut self, mark: Mark, first: usize) -> Option<YamlNode<'t>> {
        if !duplicates(&self.pairs[first..]).is_empty() {
            return None;
        }
        Some(YamlNode { mark, value: YamlValue::Mapping(self.pairs.drain(first..).collect()) })
    }

    /// The length of the key that begins here, if a key with its colon does.
    fn key_end(&self) -> Option<usize> {
        let rest = self.rest();
        let length = match rest.first()? {
            quote @ (b'"' | b'\'') => quoted_length(rest, *quote)?,
            _plain => block_scalar_length(rest)?,
        };
        (length <= KEY_BYTES_MAX && matches!(&rest[length..], [b':'] | [b':', b' ' | b'\n', ..]))
            .then_some(length)
    }

    /// The key of this length, after which comes a colon.
    fn key(&mut self, length: usize) -> Option<(Cow<'t, str>, Mark)> {
        let mark = self.mark();
        let text = &self.text[self.at..self.at + length];
        let quoted = matches!(text.as_bytes().first(), Some(b'"' | b'\''));
        let text = if quoted { &text[1..length - 1] } else { text };
        let scalar = Scalar { text: text.into(), quoted };
        self.add_weight(weight_of(&scalar.text))?;
        self.at += length + 1;
        (is_key(&scalar) && *scalar.text != *"<<").then_some((scalar.text, mark))
    }

    fn quoted(&mut self) -> Option<YamlNode<'t>> {
        let rest = self.rest();
        let length = quoted_length(rest, *rest.first()?)?;
        self.scalar(length, true)
    }

    fn plain(&mut self, length: impl Fn(&[u8]) -> Option<usize>) -> Option<YamlNode<'t>> {
        let length = length(self.rest())?;
        self.scalar(length, false)
    }

    fn scalar(&mut self, length: usize, quoted: bool) -> Option<YamlNode<'t>> {
        let mark = self.mark();
        let text = &self.text[self.at..self.at + length];
        let text = if quoted { &text[1..length - 1] } else { text };
        self.add_weight(weight_of(text))?;
        self.at += length;
        Some(YamlNode { mark, value: YamlValue::Scalar(Scalar { text: text.into(), quoted }) })
    }

    /// A node that begins here, in a flow collection or as one.
    fn flow(&mut self, depth: usize) -> Option<YamlNode<'t>> {
        match self.peek()? {
            b'{' | b'[' if depth >= DEPTH_MAX => None,
            b'{' => self.flow_mapping(depth),
            b'[' => self.flow_list(depth),
            b'"' | b'\'' => self.quoted(),
            _plain => self.plain(flow_scalar_length),
        }
    }

    fn flow_list(&mut self, depth: usize) -> Option<YamlNode<'t>> {
        let mark = self.mark();
        let first = self.nodes.len();
        self.add_weight(1)?;
        self.enter()?;
        while !self.leave(b']')? {
            let node = self.flow(depth + 1)?;
            self.nodes.push(node);
            self.separate(b']')?;
        }
        Some(YamlNode { mark, value: YamlValue::List(self.nodes.drain(first..).collect()) })
    }

    fn flow_mapping(&mut self, depth: usize) -> Option<YamlNode<'t>> {
        let mark = self.mark();
        let first = self.pairs.len();
        self.add_weight(1)?;
        self.enter()?;
        while !self.leave(b'}')? {
            let rest = self.rest();
            let quote = *rest.first()?;
            let is_quoted = matches!(quote, b'"' | b'\'');
            let length = if is_quoted { quoted_length(rest, quote)? } else { flow_scalar_length(rest)? };
            // After a quoted key, the value may follow the colon without a space.
            let has_colon = match &rest[length..] {
                [b':', b' ' | b'\n', ..] => true,
                [b':', ..] => is_quoted,
                _other => false,
            };
            if !has_colon || length > KEY_BYTES_MAX {
                return None;
            }
            let (key, mark) = self.key(length)?;
            self.skip_blank()?;
            let value = self.flow(depth + 1)?;
            self.pairs.push(YamlPair { key, mark, value });
            self.separate(b'}')?;
        }
        self.mapping(mark, first)
    }

    /// Enters a flow collection.
    fn enter(&mut self) -> Option<()> {
        self.at += 1;
        self.skip_blank()
    }

    /// Leaves a flow collection if it ends here.
    fn leave(&mut self, end: u8) -> Option<bool> {
        let ends = self.peek()? == end;
        self.at += usize::from(ends);
        Some(ends)
    }

    /// Skips to the next node of a flow collection, or to its end. `None` unless either follows.
    fn separate(&mut self, end: u8) -> Option<()> {
        self.skip_blank()?;
        if self.peek()? == b',' {
            self.at += 1;
            self.skip_blank()?;
            return (self.peek()? != end).then_some(());
        }
        (self.peek()? == end).then_some(())
    }
}

/// The length of a quoted scalar on one line, with its quotes. `None` if it has an escape.
fn quoted_length(rest: &[u8], quote: u8) -> Option<usize> {
    let ends = |byte: &u8| *byte == quote || *byte == b'\n' || quote == b'"' && *byte == b'\\';
    let inner = rest[1..].iter().position(ends)?;
    let length = inner + 2;
    (rest[inner + 1] == quote && rest.get(length) != Some(&quote)).then_some(length)
}

/// Whether a plain scalar can begin with this byte, and is nothing else then.
fn begins_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'/' | b'.' | b'$' | b'(' | b'+' | b'~')
}

/// The length of a plain scalar in a block collection, up to a colon, a comment or the end of the line.
fn block_scalar_length(rest: &[u8]) -> Option<usize> {
    rest.first().filter(|first| begins_plain(**first))?;
    let mut end = 0;
    loop {
        end += rest[end..]
            .iter()
            .position(|byte| matches!(byte, b'\n' | b':' | b'#'))
            .unwrap_or(rest.len() - end);
        let is_text = match rest.get(end) {
            Some(b':') => !matches!(rest.get(end + 1), None | Some(b' ' | b'\n')),
            Some(b'#') => rest[end - 1] != b' ',
            Some(_) | None => false,
        };
        if !is_text {
            break;
        }
        end += 1;
    }
    Some(rest[..end].trim_ascii_end().len())
}

/// The length of a plain scalar in a flow collection: one word.
fn flow_scalar_length(rest: &[u8]) -> Option<usize> {
    rest.first().filter(|first| begins_plain(**first))?;
    let is_word = |byte: &&u8| begins_plain(**byte) || matches!(**byte, b'-' | b'*' | b'@' | b'%');
    let length = rest.iter().take_while(is_word).count();
    matches!(rest.get(length), Some(b' ' | b'\n' | b',' | b']' | b'}' | b':')).then_some(length)
}
