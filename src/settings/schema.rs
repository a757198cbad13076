//! The JSON Schema of settings files, for editors. Made from the catalog.
//!
//! It never refuses a value that is allowed, whether its reader follows YAML 1.1 or 1.2. The program refuses more.

use serde_json::{Map, Value as Json, json};

use crate::settings::CATALOG;

/// The JSON Schema (draft 7) of a settings file.
pub fn json_schema() -> Json {
    let mut root = section("");
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    root["title"] = "Settings of Tollgate".into();
    // Only the settings in a section are looked up, so an empty one may have any name.
    root["additionalProperties"] = json!({"type": ["object", "null"], "maxProperties": 0});
    root
}

/// The settings and sections whose names begin with this.
fn section(prefix: &str) -> Json {
    let mut properties = Map::new();
    for setting in CATALOG {
        let Some(rest) = setting.name.strip_prefix(prefix) else { continue };
        match rest.split_once('.') {
            None => {
                let described = json!({"description": setting.help, "default": setting.default, "allOf": [setting.value_type().schema]});
                properties.insert(rest.to_owned(), described);
            }
            Some((inner, _)) if properties.contains_key(inner) => {}
            Some((inner, _)) => {
                properties.insert(inner.to_owned(), section(&format!("{prefix}{inner}.")));
            }
        }
    }
    // `<<` merges others in.
    properties.insert("<<".to_owned(), true.into());
    json!({
        "type": ["object", "null"],
        "properties": properties,
        // `xds.url` is a setting of the section `xds`.
        "patternProperties": {"\\.": true},
        "additionalProperties": false,
    })
}
