//! Messages about keys and names that a rule file has in the wrong place or misspelt.

use crate::{
    keys::{KEYS, KeySection},
    yaml::quote,
};

/// The message for a key that is not allowed in `section`.
pub(crate) fn misplaced_key(name: &str, section: KeySection) -> String {
    let quoted = quote(name);
    let known = || KEYS.iter().filter(|key| section.is_of_overlay() || !key.section.is_of_overlay());
    let sections: Vec<_> =
        known().filter(|key| key.name == name).map(|key| key.section.described()).collect();
    if !sections.is_empty() {
        return format!(
            "{quoted} does not belong {}; it belongs {}",
            section.described(),
            sections.join(" or ")
        );
    }
    let here: Vec<_> = KEYS.iter().filter(|key| key.section == section).map(|key| key.name).collect();
    match nearest(name, known().map(|key| key.name)) {
        Some(near) if here.contains(&near) => format!("unknown key {quoted}; did you mean `{near}`?"),
        Some(near) => {
            let sections = misplaced_key(near, section);
            format!("unknown key {quoted}; did you mean `{near}`? But {sections}")
        }
        None => format!("unknown key {quoted}; allowed {} are {}", section.described(), quoted_list(here)),
    }
}

/// The end of a message about a misspelt `word`: what it most likely means, if anything.
pub(crate) fn hint<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> String {
    nearest(word, candidates).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
}

/// The candidate that a misspelt `word` most likely means.
fn nearest<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    const LENGTH_MAX: usize = 64;
    const SIMILARITY_MIN: f64 = 0.6;
    if word.len() > LENGTH_MAX {
        return None;
    }
    let word = word.to_lowercase().replace('-', "_");
    let similarity = |candidate: &'c str| {
        (strsim::normalized_damerau_levenshtein(&word, &candidate.to_lowercase()), candidate)
    };
    let best = candidates.map(similarity).reduce(|best, next| if best.0 < next.0 { next } else { best })?;
    (best.0 >= SIMILARITY_MIN).then_some(best.1)
}

/// Quoted names for a message.
pub(crate) fn quoted_list<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
