//! What connections of Tollgate have in common: accepting sockets, certificates and tokens from files, a client of HTTP,
//! and files that others cannot read.

pub mod accept;
pub mod certificates;
pub mod http_client;
pub mod private_file;
