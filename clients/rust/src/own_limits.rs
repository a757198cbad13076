//! Limits of their own, which keys have in place of the numbers of their rules.

use std::vec;

use tonic::{Code, Request as Call};
use tonic_types::RpcStatusExt;

use crate::{
    Client, Descriptor, Error, NoAnswer,
    client::Inner,
    connections::Server,
    request::check_size,
    v1::{self, OwnLimit},
};

/// What has become of the limit of its own of one key.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitResult {
    /// The limit of its own that applies now. None if the numbers of the rule apply, or if nothing is known.
    pub limit: Option<OwnLimit>,
    /// The name of the rule, or its path.
    pub rule: String,
    /// Why nothing was read or changed.
    pub error: Option<LimitError>,
}

/// Why the limit of its own of one key was not read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct LimitError {
    /// The code of a gRPC status.
    pub code: Code,
    /// The name of the reason, such as `OUT_OF_BOUNDS` or `OTHER_VERSION`.
    pub reason: String,
    /// The error in words, for people.
    pub message: String,
}

impl Client {
    /// Gives keys limits of their own, with [`Options::admin_token`](crate::Options::admin_token). If one is invalid,
    /// none is set. The results are in the order of the limits.
    ///
    /// Without an answer, or with a wrong token, the error is [`Error::NoAnswer`]: limits may be set or not.
    pub async fn set_limits(&self, message: v1::SetLimitsRequest) -> Result<Vec<LimitResult>, Error> {
        check_size(&message)?;
        let (inner, keys) = (&*self.0, message.limits.len());
        let method = |mut server: Server, call: Call<_>| {
            let call = inner.authorized(call);
            async move { server.set_limits(call).await }
        };
        let _clearing = inner.denials.clearing();
        let response = inner.connections.call(message, inner.deadline(), method).await?;
        results_for(keys, response.results)
    }

    /// Reads the limits of their own of keys. Errors are those of [`Client::set_limits`].
    pub async fn get_limits(&self, domain: &str, keys: &[Descriptor]) -> Result<Vec<LimitResult>, Error> {
        let message = v1::GetLimitsRequest { domain: domain.to_owned(), descriptors: messages_of(keys) };
        check_size(&message)?;
        let inner = &*self.0;
        let method = |mut server: Server, call: Call<_>| {
            let call = inner.authorized(call);
            async move { server.get_limits(call).await }
        };
        let response = inner.connections.call(message, inner.deadline(), method).await?;
        results_for(keys.len(), response.results)
    }

    /// Removes the limits of their own of keys: the numbers of their rules apply again. Errors are those of
    /// [`Client::set_limits`].
    pub async fn clear_limits(&self, domain: &str, keys: &[Descriptor]) -> Result<Vec<LimitResult>, Error> {
        let message = v1::ClearLimitsRequest { domain: domain.to_owned(), descriptors: messages_of(keys) };
        check_size(&message)?;
        let inner = &*self.0;
        let method = |mut server: Server, call: Call<_>| {
            let call = inner.authorized(call);
            async move { server.clear_limits(call).await }
        };
        let _clearing = inner.denials.clearing();
        let response = inner.connections.call(message, inner.deadline(), method).await?;
        results_for(keys.len(), response.results)
    }

    /// The limits of their own of a domain, of all domains if it is empty, whose keys begin with these entries. In a
    /// cluster they are those of all replicas.
    pub fn list_limits(&self, domain: &str, prefix: &[(&str, &str)]) -> OwnLimits {
        let prefix = Descriptor::new(prefix.iter().copied()).message(None).entries;
        let message = v1::ListLimitsRequest { domain: domain.to_owned(), prefix, ..Default::default() };
        OwnLimits { client: self.clone(), message, page: Vec::new().into_iter(), is_last: false }
    }
}

/// The limits of [`Client::list_limits`], which are read page by page.
pub struct OwnLimits {
    client: Client,
    message: v1::ListLimitsRequest,
    page: vec::IntoIter<OwnLimit>,
    is_last: bool,
}

impl OwnLimits {
    /// The next limit; None after the last one. Errors are those of [`Client::set_limits`]; the next call goes on where
    /// this one has failed.
    pub async fn next(&mut self) -> Result<Option<OwnLimit>, Error> {
        loop {
            if let Some(limit) = self.page.next() {
                return Ok(Some(limit));
            }
            if self.is_last {
                return Ok(None);
            }
            check_size(&self.message)?;
            let inner = &*self.client.0;
            let method = |mut server: Server, call: Call<_>| {
                let call = inner.authorized(call);
                async move { server.list_limits(call).await }
            };
            let page = inner.connections.call(self.message.clone(), inner.deadline(), method).await?;
            self.is_last = page.next_page_token.is_empty();
            self.message.page_token = page.next_page_token;
            self.page = page.limits.into_iter();
        }
    }
}

impl Inner {
    /// The call with the admin token.
    fn authorized<M>(&self, mut call: Call<M>) -> Call<M> {
        if let Some(authorization) = &self.authorization {
            call.metadata_mut().insert("authorization", authorization.clone());
        }
        call
    }
}

fn messages_of(keys: &[Descriptor]) -> Vec<v1::Descriptor> {
    keys.iter().map(|key| key.message(key.hits)).collect()
}

fn results_for(keys: usize, results: Vec<v1::LimitResult>) -> Result<Vec<LimitResult>, Error> {
    if results.len() != keys {
        let message = format!("{} answers to {keys} requests", results.len());
        return Err(NoAnswer { code: Code::Internal, message }.into());
    }
    Ok(results.into_iter().map(LimitResult::from_message).collect())
}

impl LimitResult {
    fn from_message(v1::LimitResult { limit, rule, error }: v1::LimitResult) -> Self {
        let error = error.map(|error| LimitError {
            code: Code::from_i32(error.code),
            reason: error.get_details_error_info().map(|info| info.reason).unwrap_or_default(),
            message: error.message,
        });
        Self { limit, rule, error }
    }
}
