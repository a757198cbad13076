//! Loads bytes as a tree.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use granit_parser::{Event, Marker, Parser, ScalarStyle, Span};

use crate::yaml::{
    DEPTH_MAX, Located, Mark, Scalar, WEIGHT_MAX, YamlNode, YamlPair, YamlStream, YamlValue, duplicates,
    is_key, quote, weight_of,
};

/// The maximum file size: 16 MiB.
pub const BYTES_MAX: usize = 16 << 20;
/// The maximum number of problems reported for one file.
pub const PROBLEMS_MAX: usize = 1_000;
/// The key with which documents of rules begin.
const BEGINS_DOCUMENT: &str = "domain";

/// Loads all documents of a file.
pub fn load(bytes: &[u8]) -> YamlStream<'_> {
    match text_of(bytes) {
        Ok(text) => TreeLoader::default().run(text),
        Err(problem) => YamlStream { documents: Vec::new(), problems: vec![problem] },
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, Located<String>> {
    if bytes.len() > BYTES_MAX {
        let what = format!("the file has {} bytes; at most {BYTES_MAX} are allowed", bytes.len());
        return Err(Located::new(Mark::START, what));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
        let line = good.matches('\n').count() + 1;
        let column = good.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Located::new(mark_at(line, column), "not UTF-8; the file must be UTF-8 text")
    })
}

/// The tree under construction.
#[derive(Default)]
struct TreeLoader<'t> {
    stream: YamlStream<'t>,
    root: Option<YamlNode<'t>>,
    open: Vec<Frame<'t>>,
    anchors: HashMap<usize, Anchor<'t>>,
    // The weight of all nodes so far, aliases expanded.
    weight: usize,
}

/// An open list or mapping.
struct Frame<'t> {
    mark: Mark,
    anchor: usize,
    weight_before: usize,
    height: usize,
    items: Items<'t>,
}

enum Items<'t> {
    List(Vec<YamlNode<'t>>),
    Mapping { pairs: Vec<YamlPair<'t>>, next: MappingState<'t> },
}

/// What a mapping expects next.
enum MappingState<'t> {
    Key,
    /// The value of a key; `None` if the key is invalid.
    Value(Option<(Cow<'t, str>, Mark)>),
}

/// A node that aliases may refer to.
struct Anchor<'t> {
    node: YamlNode<'t>,
    weight: usize,
    height: usize,
}

/// A problem that ends the document, or the whole file.
enum Stop {
    Document(Located<String>),
    File(Located<String>),
}

impl<'t> TreeLoader<'t> {
    fn run(mut self, text: &'t str) -> YamlStream<'t> {
        let options = granit_parser::options! {
            flow_nesting_limit: DEPTH_MAX,
            block_nesting_limit: DEPTH_MAX,
            emit_unresolved_aliases: true,
        };
        let mut parser = Parser::new_from_str_with_options(text, options);
        while let Some(event) = parser.next() {
            let outcome = match event {
                Ok((event, span)) => self.handle(event, span),
                Err(error) => {
                    let what = format!("not YAML: {}", error.info());
                    Err(Stop::Document(Located::new(mark(*error.marker()), what)))
                }
            };
            match outcome {
                Ok(()) => {}
                Err(Stop::Document(problem)) => {
                    self.report(problem);
                    self.clear_document();
                    if !parser.proceed_next_document().unwrap_or(false) {
                        break;
                    }
                }
                Err(Stop::File(problem)) => {
                    self.report(problem);
                    break;
                }
            }
        }
        self.stream
    }

    fn handle(&mut self, event: Event<'t>, span: Span) -> Result<(), Stop> {
        let at = mark(span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.reject_tag(at, tag.is_some());
                // The parser yields an absent value as a `~` of zero width.
                let absent = style == ScalarStyle::Plain && span.start.index() == span.end.index();
                let text = if absent { Cow::Borrowed("") } else { text };
                let weight = self.add_weight(at, weight_of(&text))?;
                let value = YamlValue::Scalar(Scalar { text, quoted: style != ScalarStyle::Plain });
                self.finish(YamlNode { mark: at, value }, anchor, weight, 0);
                Ok(())
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.reject_tag(at, tag.is_some());
                self.begin(at, anchor, Items::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                self.reject_tag(at, tag.is_some());
                self.begin(at, anchor, Items::Mapping { pairs: Vec::new(), next: MappingState::Key })
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.end();
                Ok(())
            }
            Event::Alias(anchor) => self.expand(at, anchor),
            Event::UnresolvedAlias(name) => {
                let what = format!("no anchor `&{name}` before this alias");
                self.report(Located::new(at, what));
                self.add(YamlNode { mark: at, value: YamlValue::Unreadable }, 0);
                Ok(())
            }
            Event::DocumentEnd => {
                self.stream.documents.extend(self.root.take());
                self.clear_document();
                Ok(())
            }
            _stream_and_document_starts => Ok(()),
        }
    }

    fn clear_document(&mut self) {
        self.root = None;
        self.open.clear();
        self.anchors.clear();
    }

    fn report(&mut self, problem: Located<String>) {
        if self.stream.problems.len() < PROBLEMS_MAX {
            self.stream.problems.push(problem);
        }
    }

    fn reject_tag(&mut self, mark: Mark, tagged: bool) {
        if tagged {
            let what = "tags (`!...`) are not supported; text is written in quotes, all else without a tag";
            self.report(Located::new(mark, what));
        }
    }

    fn add_weight(&mut self, mark: Mark, weight: usize) -> Result<usize, Stop> {
        self.weight = self.weight.saturating_add(weight);
        if self.weight <= WEIGHT_MAX {
            return Ok(weight);
        }
        let what = format!("more than {WEIGHT_MAX} values, aliases expanded; write fewer, or split the file");
        Err(Stop::File(Located::new(mark, what)))
    }

    fn begin(&mut self, mark: Mark, anchor: usize, items: Items<'t>) -> Result<(), Stop> {
        if self.open.len() >= DEPTH_MAX {
            return Err(Stop::Document(too_deep(mark)));
        }
        let weight_before = self.weight;
        self.add_weight(mark, 1)?;
        self.open.push(Frame { mark, anchor, weight_before, height: 0, items });
        Ok(())
    }

    fn end(&mut self) {
        let Some(frame) = self.open.pop() else { return };
        let value = match frame.items {
            Items::List(nodes) => YamlValue::List(nodes),
            Items::Mapping { pairs, .. } => YamlValue::Mapping(self.without_duplicates(pairs)),
        };
        let weight = self.weight - frame.weight_before;
        self.finish(YamlNode { mark: frame.mark, value }, frame.anchor, weight, frame.height + 1);
    }

    /// Adds a complete node and stores it under its anchor.
    fn finish(&mut self, node: YamlNode<'t>, anchor: usize, weight: usize, height: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, Anchor { node: node.clone(), weight, height });
        }
        self.add(node, height);
    }

    fn expand(&mut self, mark: Mark, anchor: usize) -> Result<(), Stop> {
        let Some(Anchor { weight, height, .. }) = self.anchors.get(&anchor) else {
            self.report(Located::new(mark, "this alias refers to a node that contains it"));
            self.add(YamlNode { mark, value: YamlValue::Unreadable }, 0);
            return Ok(());
        };
        let weight = *weight;
        let height = *height;
        if self.open.len() + height > DEPTH_MAX {
            return Err(Stop::Document(too_deep(mark)));
        }
        self.add_weight(mark, weight)?;
        let node = self.anchors[&anchor].node.clone();
        self.add(node, height);
        Ok(())
    }

    /// Adds a node to the innermost open list or mapping, or as the root.
    fn add(&mut self, mut node: YamlNode<'t>, height: usize) {
        let Some(frame) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        frame.height = frame.height.max(height);
        let (pairs, next) = match &mut frame.items {
            Items::List(nodes) => return nodes.push(node),
            Items::Mapping { pairs, next } => (pairs, next),
        };
        match std::mem::replace(next, MappingState::Key) {
            MappingState::Key => match key_of(node) {
                Ok(key) => *next = MappingState::Value(key),
                Err(problem) => {
                    *next = MappingState::Value(None);
                    self.report(problem);
                }
            },
            MappingState::Value(None) => {}
            MappingState::Value(Some((key, mark))) => {
                if node.value == YamlValue::Scalar(Scalar { text: "".into(), quoted: false }) {
                    node.mark = mark;
                }
                pairs.push(YamlPair { key, mark, value: node });
            }
        }
    }

    /// The pairs without duplicates, of which the first is retained, extended by what `<<` merges in.
    fn without_duplicates(&mut self, mut pairs: Vec<YamlPair<'t>>) -> Vec<YamlPair<'t>> {
        let duplicates = duplicates(&pairs);
        // The frame of the mapping is closed, so none is open around that of a document.
        let is_document = self.open.is_empty();
        for (duplicate, first) in &duplicates {
            let YamlPair { key, mark, .. } = &pairs[*duplicate];
            let begins = is_document && **key == *BEGINS_DOCUMENT;
            let hint = if begins { "; if another document begins here, write `---` before it" } else { "" };
            let what = format!("{} is given twice, first in line {}{hint}", quote(key), first.line);
            self.report(Located::new(*mark, what));
        }
        if !duplicates.is_empty() {
            let (mut index, mut duplicates) =
                (0_usize.., duplicates.iter().map(|(duplicate, _)| *duplicate).peekable());
            pairs.retain(|_| index.next().is_none_or(|index| duplicates.next_if_eq(&index).is_none()));
        }
        let Some(merge) = pairs.iter().position(|pair| &*pair.key == "<<") else { return pairs };
        let merge = pairs.remove(merge);
        let mut known: HashSet<Cow<'t, str>> = pairs.iter().map(|pair| pair.key.clone()).collect();
        pairs.extend(self.merged(merge).into_iter().filter(|pair| known.insert(pair.key.clone())));
        pairs
    }

    /// The pairs that a `<<` key merges in, from one mapping or a list of them.
    fn merged(&mut self, pair: YamlPair<'t>) -> Vec<YamlPair<'t>> {
        let sources = match pair.value.value {
            YamlValue::List(nodes) => nodes,
            YamlValue::Mapping(pairs) => return pairs,
            YamlValue::Scalar(_) | YamlValue::Unreadable => vec![pair.value],
        };
        let mut pairs = Vec::new();
        for source in sources {
            match source.value {
                YamlValue::Mapping(more) => pairs.extend(more),
                YamlValue::Unreadable => {}
                YamlValue::Scalar(_) | YamlValue::List(_) => {
                    let what = "`<<` takes a mapping or a list of mappings";
                    self.report(Located::new(source.mark, what));
                }
            }
        }
        pairs
    }
}

/// The text of a key and its position; `None` if its problem was already reported.
fn key_of(node: YamlNode<'_>) -> Result<Option<(Cow<'_, str>, Mark)>, Located<String>> {
    let what = match node.value {
        YamlValue::Scalar(scalar) if is_key(&scalar) => return Ok(Some((scalar.text, node.mark))),
        YamlValue::Unreadable => return Ok(None),
        YamlValue::Scalar(_) => {
            let shown = node.describe();
            format!("a key must be text, but this is {shown}; if it is meant as text, put it in quotes")
        }
        YamlValue::List(_) | YamlValue::Mapping(_) => {
            format!("a key must be text, but this is {}", node.describe())
        }
    };
    Err(Located::new(node.mark, what))
}

fn too_deep(mark: Mark) -> Located<String> {
    let what = format!("nested too deep; at most {DEPTH_MAX} lists and mappings in each other are allowed");
    Located::new(mark, what)
}

/// Both fit in a `u32`: neither exceeds `BYTES_MAX`.
fn mark_at(line: usize, column: usize) -> Mark {
    Mark { line: line as u32, column: column as u32 }
}

fn mark(marker: Marker) -> Mark {
    mark_at(marker.line(), marker.col() + 1)
}
