//! The fuzz target of resources.

use tollgate_rules::fuzz::used;

use crate::xds::resource;

/// A resource of a control plane: it has problems that can be shown, or rules that can be looked up.
pub fn resource(bytes: &[u8]) {
    used(&resource::source(bytes.to_vec()), "resource ");
}
