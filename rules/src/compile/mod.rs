//! Compiles rules to [`Rules`] and reports every problem in them.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    OnDenied,
    contents::{Contents, Documents, RuleInput, Unknown, hash_of},
    denial_body::template::DenialBody,
    diagnostics::{Diagnostics, Location, Problem, Problems, RuleOrigin},
    file::DocumentDraft,
    overlay::Overlay,
    prefix_tree::TreeLevel,
    rule::Rule,
    rule_set::{DESCRIPTORS_MAX, Domain, Rules, Trial},
    yaml::{self, Located, quote},
};

mod document_compiler;

use document_compiler::{DocumentCompiler, OverlayUse, ParentLevel};

/// Compiles files or resources in the given order. One problem in any of them refuses all.
pub fn compile(sources: &[RuleInput]) -> Result<Rules, Problems> {
    compile_with(Problems::default(), sources, None, None)
}

/// Compiles all files or resources together, with what an overlay adds. Problems with the overlay are warnings.
pub(crate) fn compile_all(contents: &Contents, overlay: Option<&Overlay>) -> Result<Rules, Problems> {
    compile_with(contents.problems.clone(), &contents.sources, overlay, None)
}

/// Compiles sources together, with what an overlay adds and with the numbers of a trial. `problems` refuse them too.
pub(super) fn compile_with(
    problems: Problems,
    sources: &[RuleInput],
    overlay: Option<&Overlay>,
    trial: Option<&Trial>,
) -> Result<Rules, Problems> {
    let overlay_use = OverlayUse::new(overlay);
    let mut compiler = Compiler { problems, overlay, overlay_use, trial, ..Compiler::default() };
    sources.iter().for_each(|source| compiler.source(source));
    compiler.finish(hash(sources, overlay))
}

impl Rules {
    /// Compiles a single file.
    pub fn parse(path: &str, text: &str) -> Result<Self, Problems> {
        compile(&[RuleInput::file(path, text)])
    }
}

/// A hash of all contents in order, each with its length.
fn hash(sources: &[RuleInput], overlay: Option<&Overlay>) -> String {
    let overlay = overlay.map(|overlay| &*overlay.bytes);
    format!("{:032x}", hash_of(sources.iter().map(RuleInput::bytes).chain(overlay)))
}

#[derive(Default)]
struct Compiler<'o> {
    overlay: Option<&'o Overlay>,
    trial: Option<&'o Trial>,
    overlay_use: OverlayUse,
    conflicts: usize,
    unknown_fields: usize,
    domains: Vec<DomainDraft>,
    by_name: FxHashMap<String, usize>,
    descriptors: usize,
    problems: Problems,
    warnings: Problems,
}

impl Compiler<'_> {
    fn source(&mut self, source: &RuleInput) {
        let Documents { origin, stream, unknown } = source.documents();
        if let Some(Unknown { first, count }) = unknown {
            self.unknown_fields += count;
            Diagnostics::new(origin.clone(), &mut self.warnings).add(first.mark, first.value);
        }
        let diagnostics = Diagnostics::new(origin.clone(), &mut self.problems);
        let unread = !stream.problems.is_empty();
        diagnostics.add_all(stream.problems);
        let documents = stream.documents.into_iter().filter(|document| !document.is_null());
        let documents: Vec<_> = documents.collect();
        if documents.is_empty() && !unread {
            diagnostics
                .add(yaml::Mark::START, "the file holds no rules; a rule file has at least a `domain`");
        }
        for node in documents {
            let diagnostics = Diagnostics::new(origin.clone(), &mut self.problems);
            if let Some(document) = DocumentDraft::read(node, &diagnostics) {
                self.document(&origin, document);
            }
        }
    }

    fn document(&mut self, origin: &Arc<RuleOrigin>, document: DocumentDraft<'_>) {
        let next = self.domains.len();
        let index = *self.by_name.entry(document.domain.clone()).or_insert(next);
        if index == next {
            let location = Location { origin: origin.clone(), mark: document.mark };
            self.domains.push(DomainDraft::new(document.domain, location));
        }
        let draft = &mut self.domains[index];
        let descriptors = document.descriptors.len().min(DESCRIPTORS_MAX);
        draft.root.reserve(descriptors);
        draft.rules.reserve(descriptors);
        let mut compiler = DocumentCompiler {
            diagnostics: Diagnostics::new(origin.clone(), &mut self.problems),
            warnings: Diagnostics::new(origin.clone(), &mut self.warnings),
            descriptors: &mut self.descriptors,
            rules: &mut draft.rules,
            names: &mut draft.names,
            replaced: &mut draft.replaced,
            overlay: self.overlay,
            overlay_use: &mut self.overlay_use,
            conflicts: &mut self.conflicts,
            trial: self.trial,
        };
        let matching = self.overlay.map(|overlay| overlay.matching(&draft.name)).unwrap_or_default();
        let top = ParentLevel {
            path: draft.name.clone(),
            is_descriptor: false,
            groups: Vec::new(),
            shared: Vec::new(),
            matching,
        };
        set_once(&mut draft.on_denied, "on_denied", document.on_denied, &compiler.diagnostics);
        set_once(&mut draft.denial_body, "denial_body", document.denial_body, &compiler.diagnostics);
        compiler.misspellings(&document.misspellings);
        for node in document.descriptors {
            compiler.read(&node, &mut draft.root, &top);
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
            if draft.root.nodes().is_empty() && draft.location.is_in_file() {
                let what = format!("domain {} has no descriptors, so it limits nothing", quote(&draft.name));
                self.warnings.push(Problem { location: draft.location.clone(), what });
            }
        }
        let overlay_rules = self.overlay.iter().flat_map(|overlay| &overlay.rules);
        for (rule, _) in overlay_rules.zip(&self.overlay_use.matched).filter(|(_, matched)| !**matched) {
            let what = "this matches no rule of the control plane".to_owned();
            self.warnings.push(Problem { location: rule.location.clone(), what });
        }
        self.warnings.sort();
        let warnings = self.warnings.iter().cloned().collect();
        let mut rules = 0;
        let overlay = self.overlay;
        let finish = |draft: DomainDraft| {
            let domain = draft.finish(rules, overlay);
            rules += domain.rules.len();
            domain
        };
        Ok(Rules {
            domains: self.domains.into_iter().map(finish).collect(),
            by_name: self.by_name,
            hash,
            warnings,
            overlay_misfits: self.overlay_use.misfits,
            conflicts: self.conflicts,
            unknown_fields: self.unknown_fields,
        })
    }
}

/// A domain under construction, which several documents may have.
struct DomainDraft {
    name: String,
    // Of the first document.
    location: Location,
    on_denied: Option<(OnDenied, Location)>,
    denial_body: Option<(DenialBody, Location)>,
    root: TreeLevel,
    rules: Vec<Rule>,
    names: FxHashSet<String>,
    replaced: Vec<(String, Location)>,
}

/// Sets a value that all documents of a domain share, if a document has it. Reports another one than before.
fn set_once<T: PartialEq>(
    shared: &mut Option<(T, Location)>,
    name: &str,
    given: Option<Located<T>>,
    diagnostics: &Diagnostics<'_>,
) {
    let Some(Located { value, mark }) = given else { return };
    match shared {
        None => *shared = Some((value, diagnostics.location(mark))),
        Some((before, there)) if *before != value => {
            let what = format!(
                "`{name}` of this domain has another value at {there}; set it once, or to the same value"
            );
            diagnostics.add(mark, what);
        }
        Some(_) => {}
    }
}

impl DomainDraft {
    fn new(name: String, location: Location) -> Self {
        Self {
            name,
            location,
            on_denied: None,
            denial_body: None,
            root: TreeLevel::new(),
            rules: Vec::new(),
            names: FxHashSet::default(),
            replaced: Vec::new(),
        }
    }

    /// Keys of an overlay take precedence. A rule without a body has that of the domain.
    fn finish(mut self, rules_before: usize, overlay: Option<&Overlay>) -> Domain {
        let on_denied = overlay.and_then(|overlay| overlay.on_denied(&self.name));
        let on_denied = on_denied.or(self.on_denied.map(|(value, _)| value));
        let denial_body = overlay.and_then(|overlay| overlay.denial_body(&self.name)).cloned();
        let denial_body = denial_body.or(self.denial_body.map(|(value, _)| value)).map(Arc::new);
        if denial_body.is_some() {
            let without = |rule: &&mut Rule| rule.denial_body.is_none() && rule.limit().is_some();
            for rule in self.rules.iter_mut().filter(without) {
                rule.denial_body.clone_from(&denial_body);
            }
        }
        Domain {
            name: self.name.into(),
            on_denied,
            denial_body,
            root: self.root,
            rules: self.rules,
            rules_before,
        }
    }
}
