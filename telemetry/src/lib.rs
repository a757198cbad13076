//! Logs, metrics and traces of the process.

mod call_site_limit;
pub mod logs;
pub mod metrics;
mod output;
mod parent_span;
pub mod sampler;
pub mod traces;

/// An error with all its causes, outermost first, each text once: some errors already end with that of their cause.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{error::Error, fmt};

    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|layer| layer as _)
        }
    }

    #[test]
    fn causes_name_each_text_once() {
        let refused = Layer("refused", None);
        let connect = Layer("connect error", Some(Box::new(Layer("connect error", Some(Box::new(refused))))));
        assert_eq!(
            causes(&Layer("transport error", Some(Box::new(connect)))),
            "transport error: connect error: refused"
        );
    }
}
