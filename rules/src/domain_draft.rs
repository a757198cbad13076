//! A domain under construction, which several documents may have.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::{
    DenialBody, Domain, Location, OnDenied, Rule, diagnostics::Diagnostics, overlay::Overlay,
    prefix_tree::TreeLevel, reader::Located,
};

/// A domain under construction.
pub(super) struct DomainDraft {
    pub(super) name: String,
    // Of the first document.
    pub(super) location: Location,
    pub(super) on_denied: OfDomain<OnDenied>,
    pub(super) denial_body: OfDomain<DenialBody>,
    pub(super) root: TreeLevel,
    pub(super) rules: Vec<Rule>,
    pub(super) names: FxHashSet<String>,
    pub(super) replaced: Vec<(String, Location)>,
}

/// A value that all documents of a domain share, and where it is given.
pub(super) struct OfDomain<T>(Option<(T, Location)>);

impl<T: PartialEq> OfDomain<T> {
    /// Sets the value of the key `name`, if it is given. Reports another one than before.
    pub(super) fn set(&mut self, name: &str, given: Option<Located<T>>, diagnostics: &mut Diagnostics<'_>) {
        let Some(Located { value, mark }) = given else { return };
        match &self.0 {
            None => self.0 = Some((value, diagnostics.location(mark))),
            Some((before, there)) if *before != value => {
                let what = format!(
                    "`{name}` of this domain has another value at {there}; set it once, or to the same value"
                );
                diagnostics.add(mark, what);
            }
            Some(_) => {}
        }
    }

    fn value(self) -> Option<T> {
        self.0.map(|(value, _)| value)
    }
}

impl DomainDraft {
    pub(super) fn new(name: String, location: Location) -> Self {
        Self {
            name,
            location,
            on_denied: OfDomain(None),
            denial_body: OfDomain(None),
            root: TreeLevel::new(),
            rules: Vec::new(),
            names: FxHashSet::default(),
            replaced: Vec::new(),
        }
    }

    /// Keys of an overlay take precedence. A rule without a body has that of the domain.
    pub(super) fn finish(mut self, rules_before: usize, overlay: Option<&Overlay>) -> Domain {
        let on_denied = overlay.and_then(|overlay| overlay.on_denied(&self.name));
        let on_denied = on_denied.or(self.on_denied.value());
        let denial_body = overlay.and_then(|overlay| overlay.denial_body(&self.name)).cloned();
        let denial_body = denial_body.or(self.denial_body.value()).map(Arc::new);
        if denial_body.is_some() {
            let without = |rule: &&mut Rule| rule.denial_body.is_none() && rule.limit().is_some();
            for rule in self.rules.iter_mut().filter(without) {
                rule.denial_body.clone_from(&denial_body);
            }
        }
        Domain { name: self.name, on_denied, denial_body, root: self.root, rules: self.rules, rules_before }
    }
}
