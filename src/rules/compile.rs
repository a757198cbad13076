//! Compiles rule files to [`Rules`] and reports every problem in them.

use std::{
    hash::Hasher,
    sync::{Arc, OnceLock},
};

use rustc_hash::{FxHashMap, FxHashSet};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::{
    rules::{
        Domain, OnDenied, Problem, Problems, Rule, Rules,
        diagnostics::{Diagnostics, Location},
        file::{Descriptor, Document, RateLimit},
        limit,
        prefix_tree::{Level, MatchKind, Node, composite},
        reader::Located,
        stats::StatsHandle,
    },
    yaml::{self, quote},
};

/// The maximum number of descriptors in all files together.
const DESCRIPTORS_MAX: usize = 1_000_000;

/// A rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The path, for messages.
    pub path: Arc<str>,
    /// The content.
    pub bytes: Vec<u8>,
}

/// Compiles files in the given order. One problem in any file refuses all of them.
pub fn compile(sources: &[Source]) -> Result<Rules, Problems> {
    compile_with(Problems::default(), sources)
}

/// Compiles files for which `problems` were found earlier.
pub(crate) fn compile_with(problems: Problems, sources: &[Source]) -> Result<Rules, Problems> {
    let mut compiler = Compiler { problems, ..Compiler::default() };
    sources.iter().for_each(|source| compiler.file(source));
    compiler.finish(hash(sources))
}

impl Rules {
    /// Compiles a single file.
    pub fn parse(path: &str, text: &str) -> Result<Self, Problems> {
        compile(&[Source { path: path.into(), bytes: text.into() }])
    }
}

/// A hash of all contents in order, each with its length.
fn hash(sources: &[Source]) -> String {
    let mut hasher = SipHasher13::new();
    for source in sources {
        hasher.write(&(source.bytes.len() as u64).to_le_bytes());
        hasher.write(&source.bytes);
    }
    format!("{:032x}", hasher.finish128().as_u128())
}

#[derive(Default)]
struct Compiler {
    domains: Vec<DomainDraft>,
    by_name: FxHashMap<String, usize>,
    descriptors: usize,
    problems: Problems,
    warnings: Problems,
}

/// A domain under construction.
struct DomainDraft {
    name: String,
    on_denied: Option<(OnDenied, Location)>,
    root: Level,
    rules: Vec<Arc<Rule>>,
    names: FxHashSet<String>,
    replaced: Vec<(String, Location)>,
}

impl Compiler {
    fn file(&mut self, source: &Source) {
        let stream = yaml::load(&source.bytes);
        let mut diagnostics = Diagnostics::new(source.path.clone(), &mut self.problems);
        let unread = !stream.problems.is_empty();
        diagnostics.add_all(stream.problems);
        let documents = stream.documents.into_iter().filter(|document| !document.is_null());
        let documents: Vec<_> = documents.collect();
        if documents.is_empty() && !unread {
            diagnostics
                .add(yaml::Mark::START, "the file holds no rules; a rule file has at least a `domain`");
        }
        for node in documents {
            let mut diagnostics = Diagnostics::new(source.path.clone(), &mut self.problems);
            if let Some(document) = Document::read(node, &mut diagnostics) {
                self.document(&source.path, document);
            }
        }
    }

    fn document(&mut self, file: &Arc<str>, document: Document) {
        let next = self.domains.len();
        let index = *self.by_name.entry(document.domain.clone()).or_insert(next);
        if index == next {
            self.domains.push(DomainDraft::new(document.domain));
        }
        let draft = &mut self.domains[index];
        let mut compiler = DocumentCompiler {
            diagnostics: Diagnostics::new(file.clone(), &mut self.problems),
            warnings: Diagnostics::new(file.clone(), &mut self.warnings),
            descriptors: &mut self.descriptors,
            rules: &mut draft.rules,
            names: &mut draft.names,
            replaced: &mut draft.replaced,
        };
        if let Some(Located { value, mark }) = document.on_denied {
            let here = compiler.diagnostics.location(mark);
            let (before, there) = draft.on_denied.get_or_insert((value, here));
            if *before != value {
                let what = format!(
                    "`on_denied` of this domain has another value at {there}; set it once, or to the same value"
                );
                compiler.diagnostics.add(mark, what);
            }
        }
        draft.root.reserve(document.descriptors.len().min(DESCRIPTORS_MAX));
        for node in document.descriptors {
            compiler.read(&node, &mut draft.root, &draft.name);
        }
    }

    fn finish(mut self, hash: String) -> Result<Rules, Problems> {
        if !self.problems.is_empty() {
            self.problems.sort();
            return Err(self.problems);
        }
        for draft in &self.domains {
            let unknown = draft.replaced.iter().filter(|(name, _)| !draft.names.contains(name));
            for (name, location) in unknown {
                let what = format!(
                    "no limit of domain {} has the name {}; this replaces nothing",
                    quote(&draft.name),
                    quote(name)
                );
                self.warnings.push(Problem { location: location.clone(), what });
            }
        }
        self.warnings.sort();
        let warnings = self.warnings.iter().cloned().collect();
        let domains = self.domains.into_iter().map(DomainDraft::finish).collect();
        Ok(Rules { domains, by_name: self.by_name, hash, warnings })
    }
}

impl DomainDraft {
    fn new(name: String) -> Self {
        Self {
            name,
            on_denied: None,
            root: Level::default(),
            rules: Vec::new(),
            names: FxHashSet::default(),
            replaced: Vec::new(),
        }
    }

    fn finish(self) -> Domain {
        let on_denied = self.on_denied.map(|(on_denied, _)| on_denied);
        Domain { name: self.name, on_denied, root: self.root, rules: self.rules }
    }
}

/// Compiles the descriptors of one document into the prefix tree of their domain.
struct DocumentCompiler<'c> {
    diagnostics: Diagnostics<'c>,
    warnings: Diagnostics<'c>,
    descriptors: &'c mut usize,
    rules: &'c mut Vec<Arc<Rule>>,
    names: &'c mut FxHashSet<String>,
    replaced: &'c mut Vec<(String, Location)>,
}

impl DocumentCompiler<'_> {
    /// Reads a node as a descriptor of `level`, below the path `parent`.
    fn read(&mut self, node: &yaml::Node, level: &mut Level, parent: &str) {
        if let Some(draft) = Descriptor::read(node, &mut self.diagnostics) {
            self.descriptor(draft, level, parent);
        }
    }

    fn descriptor(&mut self, mut draft: Descriptor<'_>, level: &mut Level, parent: &str) {
        *self.descriptors += 1;
        if *self.descriptors > DESCRIPTORS_MAX {
            if *self.descriptors == DESCRIPTORS_MAX + 1 {
                let what = format!("more than {DESCRIPTORS_MAX} descriptors in all files; write fewer");
                self.diagnostics.add(draft.mark, what);
            }
            return;
        }
        let key = draft.key.take();
        let composite = composite(key.as_deref().unwrap_or_default(), &draft.value);
        let path = format!("{parent}.{composite}");
        let duplicate = level.get(&composite).filter(|_| key.is_some()).map(|node| node.location.clone());
        if let Some(location) = &duplicate {
            let what = format!(
                "{} is already given at {location}; keys and values together must differ",
                quote(&path)
            );
            self.diagnostics.add(draft.mark, what);
        }
        self.flags(&draft, &composite);
        let rule = draft.rate_limit.take().and_then(|limit| self.rule(limit, &mut draft, &path));
        let mut children = Level::default();
        children.reserve(draft.descriptors.len().min(DESCRIPTORS_MAX));
        draft.descriptors.iter().for_each(|child| self.read(child, &mut children, &path));
        if let (Some(key), None) = (key, duplicate) {
            level.push(Node {
                location: self.diagnostics.location(draft.mark),
                declared_kind: MatchKind::declared(&key, &draft.value),
                key_prefix: OnceLock::new(),
                key: key.into(),
                value: draft.value.into(),
                rule,
                value_to_metric: draft.value_to_metric.is_some_and(|boolean| boolean.value),
                share_threshold: draft.share_threshold.is_some_and(|boolean| boolean.value),
                children,
            });
        }
    }

    fn flags(&mut self, draft: &Descriptor<'_>, composite: &str) {
        let set = |boolean: &Option<Located<bool>>| {
            boolean.as_ref().filter(|boolean| boolean.value).map(|boolean| boolean.mark)
        };
        if let Some(mark) = set(&draft.share_threshold).filter(|_| !composite.contains('*')) {
            let what = format!(
                "`share_threshold` needs a `*` in `key` or `value`, but this is {}",
                quote(composite)
            );
            self.diagnostics.add(mark, what);
        }
        if draft.rate_limit.is_some() {
            return;
        }
        let metadata = draft.metadata.as_ref().map(|metadata| metadata.mark);
        for (name, mark) in [
            ("shadow_mode", set(&draft.shadow_mode)),
            ("quota_mode", set(&draft.quota_mode)),
            ("detailed_metric", set(&draft.detailed_metric)),
            ("metadata", metadata),
        ] {
            if let Some(mark) = mark {
                self.warnings.add(mark, format!("`{name}` has no effect without a `rate_limit` beside it"));
            }
        }
    }

    fn rule(&mut self, limit: RateLimit, draft: &mut Descriptor<'_>, path: &str) -> Option<Arc<Rule>> {
        for replaced in &limit.replaces {
            if limit.name.as_ref() == Some(&replaced.value) {
                self.diagnostics
                    .add(replaced.mark, "`replaces` names the limit itself; it takes the names of others");
            }
            self.replaced.push((replaced.value.clone(), self.diagnostics.location(replaced.mark)));
        }
        self.names.extend(limit.name.clone());
        let terms = limit::terms(&limit, &mut self.diagnostics);
        let tried = limit.candidate.as_ref();
        let candidate = tried
            .map(|tried| limit::candidate(tried, &mut self.diagnostics))
            .map_or(Some(None), |limit| limit.map(Some));
        let (terms, candidate) = (terms?, candidate?);
        let set = |boolean: &Option<Located<bool>>| boolean.as_ref().is_some_and(|boolean| boolean.value);
        let rule = Arc::new(Rule {
            path: path.to_owned(),
            name: limit.name,
            allowance: terms.allowance,
            candidate,
            on_owner_unavailable: limit.on_owner_unavailable.map(|what| what.value).unwrap_or_default(),
            lease: limit.lease.is_none_or(|lease| lease.value),
            replaces: limit.replaces.into_iter().map(|replaced| replaced.value).collect(),
            shadow_mode: set(&draft.shadow_mode),
            quota_mode: set(&draft.quota_mode),
            detailed_metric: set(&draft.detailed_metric),
            metadata: draft.metadata.take().map(|metadata| metadata.value),
            displayed_limit: terms.displayed_limit,
            location: self.diagnostics.location(limit.mark),
            stats: StatsHandle::default(),
        });
        self.rules.push(rule.clone());
        Some(rule)
    }
}
