//! `proto/tollgate/v1/openapi.yaml` is what the descriptors of `tollgate.v1` say.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use prost_reflect::{
    Cardinality, DescriptorPool, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor, MethodDescriptor,
};
use tollgate::api::Method;
use tollgate_wire::proto::DESCRIPTORS;

use crate::harness::Service;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/tollgate/v1/openapi.yaml");

const HEAD: &str = "\
# Written from tollgate.proto by tests/it/api_v1/openapi.rs.
openapi: 3.1.0
info:
  title: tollgate.v1
  description: Rate limits for services that ask by themselves, in the JSON mapping of Protocol Buffers.
  license: {name: Apache-2.0, identifier: Apache-2.0}
  version: v1
servers:
  - url: http://127.0.0.1:8080
    description: A replica with the default of `http.listen`.
tags:
  - name: limits
    description: Calls of services, without a token.
  - name: operation
    description: Calls of operators, with the admin token.
";

/// The description of an element of a `.proto` file: the comment above it.
fn comment(file: &FileDescriptor, path: &[i32]) -> String {
    let source = file.file_descriptor_proto().source_code_info.as_ref().unwrap();
    let location = source.location.iter().find(|location| location.path == path);
    let comment = location.and_then(|location| location.leading_comments.as_deref()).unwrap_or_default();
    comment.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A text in YAML.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// The schemas that paths and other schemas refer to.
#[derive(Default)]
struct Schemas(BTreeMap<String, String>);

impl Schemas {
    fn reference(&mut self, message: &MessageDescriptor) -> String {
        match message.full_name() {
            "google.protobuf.Duration" => {
                return "{type: string, pattern: '^-?[0-9]+(\\.[0-9]{1,9})?s$', examples: [1.500s]}".into();
            }
            "google.protobuf.Timestamp" => return "{type: string, format: date-time}".into(),
            "google.protobuf.Any" => {
                return "{type: object, properties: {'@type': {type: string}}, additionalProperties: true}"
                    .into();
            }
            _schema => {}
        }
        let name = message.full_name().trim_start_matches("tollgate.v1.").to_owned();
        if !self.0.contains_key(&name) {
            // Reserved before its fields are read, because they may refer to it.
            self.0.insert(name.clone(), String::new());
            let schema = self.message(message);
            self.0.insert(name.clone(), schema);
        }
        format!("{{$ref: '#/components/schemas/{name}'}}")
    }

    fn message(&mut self, message: &MessageDescriptor) -> String {
        let mut text = String::from("      type: object\n      additionalProperties: false\n");
        let description = comment(&message.parent_file(), message.path());
        if !description.is_empty() {
            writeln!(text, "      description: {}", quoted(&description)).unwrap();
        }
        text += "      properties:\n";
        for field in message.fields() {
            writeln!(text, "        {}:", field.json_name()).unwrap();
            let description = comment(&message.parent_file(), field.path());
            if !description.is_empty() {
                writeln!(text, "          description: {}", quoted(&description)).unwrap();
            }
            let schema = self.field(&field);
            match field.cardinality() {
                Cardinality::Repeated => {
                    writeln!(text, "          type: array\n          items: {schema}").unwrap()
                }
                // Beside a reference, linters expect a description.
                Cardinality::Optional | Cardinality::Required if description.is_empty() => {
                    text.truncate(text.len() - 1);
                    writeln!(text, " {schema}").unwrap();
                }
                Cardinality::Optional | Cardinality::Required => {
                    writeln!(text, "          allOf: [{schema}]").unwrap();
                }
            }
        }
        text
    }

    fn field(&mut self, field: &FieldDescriptor) -> String {
        match field.kind() {
            Kind::Message(message) => self.reference(&message),
            Kind::Enum(names) => {
                let names: Vec<_> = names.values().map(|value| value.name().to_owned()).collect();
                format!("{{type: string, enum: [{}]}}", names.join(", "))
            }
            Kind::String => "{type: string}".into(),
            Kind::Bool => "{type: boolean}".into(),
            Kind::Int32 | Kind::Uint32 => "{type: integer}".into(),
            // A number of 64 bits is written as a string, and read as either.
            Kind::Uint64 => "{type: [string, integer], format: uint64, pattern: '^[0-9]+$'}".into(),
            other => panic!("no schema for {other:?}"),
        }
    }
}

fn path(method: &MethodDescriptor, schemas: &mut Schemas) -> String {
    let served = Method::ALL.iter().find(|served| served.name() == method.name()).unwrap();
    let path = served.json_path();
    let name = operation_id(method.name());
    let description = comment(&method.parent_service().parent_file(), method.path());
    let (input, output) = (schemas.reference(&method.input()), schemas.reference(&method.output()));
    let summary = quoted(description.split_once('.').map_or(&*description, |(first, _)| first));
    let description = quoted(&description);
    // The codes of HTTP that `docs/api.md` names.
    let (tag, security, errors): (_, _, &[u16]) = match served {
        Method::Operator(_) => ("operation", "[{adminToken: []}]", &[400, 401, 403, 404, 413, 503]),
        _without_token => ("limits", "[]", &[400, 413, 503]),
    };
    let error = "{$ref: '#/components/responses/Error'}";
    let errors: String = errors.iter().map(|code| format!("        '{code}': {error}\n")).collect();
    format!(
        "  {path}:
    post:
      operationId: {name}
      summary: {summary}
      description: {description}
      tags: [{tag}]
      security: {security}
      requestBody:
        required: true
        content: {{application/json: {{schema: {input}}}}}
      responses:
        '200':
          description: The call is answered, whatever the verdicts.
          content: {{application/json: {{schema: {output}}}}}
{errors}        default: {error}
"
    )
}

/// The name of a method, which begins in lower case.
fn operation_id(name: &str) -> String {
    name[..1].to_lowercase() + &name[1..]
}

/// The text of the file.
fn expected() -> String {
    let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let service = pool.get_service_by_name("tollgate.v1.RateLimiter").unwrap();
    let mut schemas = Schemas::default();
    let unary = service.methods().filter(|method| !method.is_client_streaming());
    let paths: String = unary.map(|method| path(&method, &mut schemas)).collect();
    let status = schemas.reference(&pool.get_message_by_name("google.rpc.Status").unwrap());
    let mut text = format!("{HEAD}paths:\n{paths}components:\n");
    text += "  securitySchemes:\n    adminToken: {type: http, scheme: bearer}\n";
    write!(
        text,
        "  responses:
    Error:
      description: The call is refused or failed as a whole, so that nothing was decided.
      content: {{application/json: {{schema: {status}}}}}
  schemas:
"
    )
    .unwrap();
    for (name, schema) in schemas.0 {
        write!(text, "    {name}:\n{schema}").unwrap();
    }
    text
}

#[test]
fn openapi_file_agrees_with_the_descriptors() {
    let expected = expected();
    if fs::read_to_string(FILE).unwrap_or_default() != expected {
        let written = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openapi.yaml");
        fs::write(&written, expected).unwrap();
        panic!("{FILE} differs; copy {} over it", written.display());
    }
}

/// The operations of the file: the path of each, and its lines.
fn operations(file: &str) -> Vec<(&str, Vec<&str>)> {
    let (_, paths) = file.split_once("\npaths:\n").unwrap();
    let (paths, _) = paths.split_once("\ncomponents:\n").unwrap();
    let operations = paths.split("  /v1/").skip(1);
    operations.map(|text| (text.split_once(':').unwrap().0, text.lines().map(str::trim).collect())).collect()
}

#[test]
fn operations_of_openapi_file_have_what_linters_require() {
    let file = fs::read_to_string(FILE).unwrap();
    assert!(file.contains("\nservers:\n  - url: http"), "no servers");
    assert!(file.contains("\n  license: {name: "), "no license");
    let operations = operations(&file);
    assert_eq!(operations.len(), Method::ALL.len() - 1, "all methods but that of Envoy");
    for (name, lines) in operations {
        let value = |key: &str| lines.iter().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        let served = Method::ALL.iter().find(|served| served.json_path() == format!("/v1/{name}")).unwrap();
        assert_eq!(value("operationId: "), operation_id(served.name()));
        assert!(value("summary: ").len() > 2, "{name}: no summary");
        let is_operator = matches!(served, Method::Operator(_));
        let security = if is_operator { "[{adminToken: []}]" } else { "[]" };
        assert_eq!(value("security: "), security, "{name}");
        assert!(!value("'400': ").is_empty(), "{name}: no code of a refusal");
    }
}

#[tokio::test]
async fn every_path_of_openapi_file_is_served() {
    let service = Service::start("domain: shop").await;
    let file = fs::read_to_string(FILE).unwrap();
    let paths = || file.lines().filter_map(|line| line.strip_prefix("  /")?.strip_suffix(':'));
    assert_eq!(paths().count(), Method::ALL.len() - 1, "all methods but that of Envoy");
    for path in paths() {
        let (code, body) = service.http("POST", &format!("/{path}"), "{}").await;
        // Without requests or a token each call is refused, by itself.
        assert!(matches!(code, 400 | 401 | 403) && body.starts_with(r#"{"code":"#), "/{path}: {code} {body}");
    }
}
