//! Loads bytes as a tree.

use std::{borrow::Cow, collections::hash_map::Entry};

use granit_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::yaml::{
    DEPTH_MAX, Located, Mark, Scalar, WEIGHT_MAX, YamlNode, YamlPair, YamlStream, YamlValue, is_key, quote,
    weight_of,
};

/// The maximum file size: 16 MiB.
pub const BYTES_MAX: usize = 16 << 20;
/// The maximum number of problems reported for one file.
pub const PROBLEMS_MAX: usize = 1_000;
/// The key with which documents of rules begin.
const BEGINS_DOCUMENT: &str = "domain";

/// Loads all documents of a file.
pub fn load(bytes: &[u8]) -> YamlStream<'_> {
    let text = match text_of(bytes) {
        Ok(text) => text,
        Err(problem) => return YamlStream { documents: Vec::new(), problems: vec![problem] },
    };
    let options = granit_parser::options! {
        flow_nesting_limit: DEPTH_MAX,
        block_nesting_limit: DEPTH_MAX,
        emit_unresolved_aliases: true,
    };
    let parser = Parser::new_from_str_with_options(text, options);
    let loader =
        TreeLoader { parser, stream: YamlStream::default(), anchors: FxHashMap::default(), weight: 0 };
    loader.run()
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

/// Builds the trees of a file from the events of its parser.
struct TreeLoader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    stream: YamlStream<'t>,
    // Of the document that is read.
    anchors: FxHashMap<usize, Anchor<'t>>,
    // The weight of all nodes so far, aliases expanded.
    weight: usize,
}

/// A node that aliases may refer to.
struct Anchor<'t> {
    tree: Tree<'t>,
    weight: usize,
}

/// A node with the number of lists and mappings in each other from it down.
#[derive(Clone)]
struct Tree<'t> {
    node: YamlNode<'t>,
    height: usize,
}

/// A problem that ends the document, or the whole file.
enum Stop {
    Document(Located<String>),
    File(Located<String>),
}

impl<'t> TreeLoader<'t> {
    fn run(mut self) -> YamlStream<'t> {
        loop {
            match self.documents() {
                Ok(()) => break,
                Err(Stop::Document(problem)) => {
                    self.report(problem);
                    if !self.parser.proceed_next_document().unwrap_or(false) {
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

    /// Reads documents up to the end of the file. One is kept once its end was read without a problem of its syntax.
    fn documents(&mut self) -> Result<(), Stop> {
        self.anchors.clear();
        let mut root = None;
        while let Some((event, span)) = self.event()? {
            if event == Event::DocumentEnd {
                self.anchors.clear();
                self.stream.documents.extend(root.take());
            } else if let Some(tree) = self.tree(event, span, 0)? {
                root = Some(tree.node);
            }
        }
        Ok(())
    }

    fn event(&mut self) -> Result<Option<(Event<'t>, Span)>, Stop> {
        self.parser.next().transpose().map_err(|error| {
            let what = format!("not YAML: {}", error.info());
            Stop::Document(Located::new(mark(*error.marker()), what))
        })
    }

    /// The next node in a list or mapping, which has `depth` lists and mappings around its content; `None` at the end.
    fn next(&mut self, depth: usize) -> Result<Option<Tree<'t>>, Stop> {
        let Some((event, span)) = self.event()? else { return Ok(None) };
        self.tree(event, span, depth)
    }

    /// The node that begins with this event, in `depth` lists and mappings; `None` if none begins.
    fn tree(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Option<Tree<'t>>, Stop> {
        let at = mark(span.start);
        let weight_before = self.weight;
        let (anchor, value, height) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.reject_tag(at, tag.is_some());
                // The parser yields an absent value as a `~` of zero width.
                let absent = style == ScalarStyle::Plain && span.start.index() == span.end.index();
                let text = if absent { Cow::Borrowed("") } else { text };
                self.add_weight(at, weight_of(&text))?;
                (anchor, YamlValue::Scalar(Scalar { text, quoted: style != ScalarStyle::Plain }), 0)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.begin(at, tag.is_some(), depth)?;
                let mut items = Vec::new();
                let mut height = 0;
                while let Some(item) = self.next(depth + 1)? {
                    height = height.max(item.height);
                    items.push(item.node);
                }
                (anchor, YamlValue::List(items), height + 1)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.begin(at, tag.is_some(), depth)?;
                let (pairs, height) = self.pairs(depth + 1)?;
                (anchor, YamlValue::Mapping(self.without_duplicates(pairs, depth == 0)), height + 1)
            }
            Event::Alias(anchor) => return self.expand(at, anchor, depth).map(Some),
            Event::UnresolvedAlias(name) => {
                return Ok(Some(self.unreadable(at, format!("no anchor `&{name}` before this alias"))));
            }
            _end_or_begin_of_document => return Ok(None),
        };
        let tree = Tree { node: YamlNode { mark: at, value }, height };
        if anchor != 0 {
            let weight = self.weight - weight_before;
            self.anchors.insert(anchor, Anchor { tree: tree.clone(), weight });
        }
        Ok(Some(tree))
    }

    /// The pairs of a mapping with valid keys, in `depth` lists and mappings, and the greatest height in them.
    fn pairs(&mut self, depth: usize) -> Result<(Vec<YamlPair<'t>>, usize), Stop> {
        let mut pairs = Vec::new();
        let mut height = 0;
        while let Some(key) = self.next(depth)? {
            height = height.max(key.height);
            let key = key_of(key.node).unwrap_or_else(|problem| {
                self.report(problem);
                None
            });
            let Some(Tree { node: mut value, height: below }) = self.next(depth)? else { break };
            height = height.max(below);
            let Some((key, mark)) = key else { continue };
            if value.value == YamlValue::Scalar(Scalar { text: "".into(), quoted: false }) {
                value.mark = mark;
            }
            pairs.push(YamlPair { key, mark, value });
        }
        Ok((pairs, height))
    }

    fn report(&mut self, problem: Located<String>) {
        if self.stream.problems.len() < PROBLEMS_MAX {
            self.stream.problems.push(problem);
        }
    }

    fn unreadable(&mut self, mark: Mark, what: String) -> Tree<'t> {
        self.report(Located::new(mark, what));
        Tree { node: YamlNode { mark, value: YamlValue::Unreadable }, height: 0 }
    }

    fn reject_tag(&mut self, mark: Mark, tagged: bool) {
        if tagged {
            let what = "tags (`!...`) are not supported; text is written in quotes, all else without a tag";
            self.report(Located::new(mark, what));
        }
    }

    fn add_weight(&mut self, mark: Mark, weight: usize) -> Result<(), Stop> {
        self.weight = self.weight.saturating_add(weight);
        if self.weight <= WEIGHT_MAX {
            return Ok(());
        }
        let what = format!("more than {WEIGHT_MAX} values, aliases expanded; write fewer, or split the file");
        Err(Stop::File(Located::new(mark, what)))
    }

    /// Begins a list or mapping in `depth` others.
    fn begin(&mut self, mark: Mark, tagged: bool, depth: usize) -> Result<(), Stop> {
        self.reject_tag(mark, tagged);
        if depth >= DEPTH_MAX {
            return Err(Stop::Document(too_deep(mark)));
        }
        self.add_weight(mark, 1)
    }

    /// The node that an alias refers to.
    fn expand(&mut self, mark: Mark, anchor: usize, depth: usize) -> Result<Tree<'t>, Stop> {
        let Some(Anchor { tree, weight }) = self.anchors.get(&anchor) else {
            return Ok(self.unreadable(mark, "this alias refers to a node that contains it".to_owned()));
        };
        if depth + tree.height > DEPTH_MAX {
            return Err(Stop::Document(too_deep(mark)));
        }
        self.add_weight(mark, *weight)?;
        Ok(self.anchors[&anchor].tree.clone())
    }

    /// The pairs without duplicates, of which the first is retained, extended by what `<<` merges in.
    fn without_duplicates(&mut self, mut pairs: Vec<YamlPair<'t>>, is_document: bool) -> Vec<YamlPair<'t>> {
        let mut firsts = FxHashMap::with_capacity_and_hasher(pairs.len(), FxBuildHasher);
        pairs.retain(|YamlPair { key, mark, .. }| {
            let first = match firsts.entry(key.clone()) {
                Entry::Occupied(first) => *first.get(),
                Entry::Vacant(unused) => {
                    unused.insert(mark.line);
                    return true;
                }
            };
            let begins = is_document && **key == *BEGINS_DOCUMENT;
            let hint = if begins { "; if another document begins here, write `---` before it" } else { "" };
            let what = format!("{} is given twice, first in line {first}{hint}", quote(key));
            self.report(Located::new(*mark, what));
            false
        });
        let Some(merge) = pairs.iter().position(|pair| &*pair.key == "<<") else { return pairs };
        let merge = pairs.remove(merge);
        for pair in self.merged(merge) {
            if let Entry::Vacant(unused) = firsts.entry(pair.key.clone()) {
                unused.insert(pair.mark.line);
                pairs.push(pair);
            }
        }
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

/// The mark of a line and a column. Both fit in a `u32`: neither exceeds `BYTES_MAX`.
fn mark_at(line: usize, column: usize) -> Mark {
    Mark { line: line as u32, column: column as u32 }
}

fn mark(marker: Marker) -> Mark {
    mark_at(marker.line(), marker.col() + 1)
}
