//! JSON Schemas of a spec and of `labbook.yaml`, for editors.
//!
//! Invariant: they are made of the tables that the readers use, so a key cannot be in one and not in the other. They are
//! looser than the readers: what needs two places or a file to judge is left to `labbook check`.
//! Source: JSON Schema, draft 2020-12.

use serde_json::{Map, Value, json};

use crate::spec::keys::{self, Key, Need, Shape, Table};

/// Returns the schema of a spec.
pub fn spec() -> Value {
    document("labbook experiment", &keys::SPEC)
}

/// Returns the schema of `labbook.yaml`.
pub fn lab() -> Value {
    document("labbook.yaml", &keys::LAB)
}

fn document(title: &str, table: &Table) -> Value {
    let mut schema = Map::new();
    schema.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
    schema.insert("title".into(), json!(title));
    schema.extend(object(table));
    Value::Object(schema)
}

fn object(table: &Table) -> Map<String, Value> {
    let properties: Map<String, Value> = table.keys.iter().map(|key| (key.name.to_owned(), property(key))).collect();
    let required: Vec<&str> = table.keys.iter().filter(|key| key.need == Need::Required).map(|key| key.name).collect();
    let mut schema = Map::new();
    schema.insert("type".into(), json!("object"));
    schema.insert("properties".into(), Value::Object(properties));
    schema.insert("required".into(), json!(required));
    schema.insert("additionalProperties".into(), json!(false));
    schema
}

fn property(key: &Key) -> Value {
    let mut schema = Map::new();
    let description = match key.need {
        Need::Default(default) => format!("{} (default `{default}`)", key.what),
        Need::Required | Need::Optional => key.what.to_owned(),
    };
    schema.insert("description".into(), json!(description));
    schema.extend(shape(&key.shape));
    Value::Object(schema)
}

/// Text is kept as typed, so what an editor takes for a number or a truth value is text as well.
fn scalar() -> Value {
    json!({ "type": ["string", "number", "boolean"] })
}

fn list(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn levels(item: &Value) -> Value {
    json!({ "anyOf": [item, { "type": "array", "items": item, "minItems": 1, "uniqueItems": true }] })
}

fn shape(shape: &Shape) -> Map<String, Value> {
    let schema = match shape {
        Shape::Text => scalar(),
        Shape::Whole(low, high) => json!({ "type": "integer", "minimum": low, "maximum": high }),
        Shape::Number(low, high) => json!({ "type": "number", "minimum": low, "maximum": high }),
        Shape::Percent => json!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)? *%$" }),
        Shape::Duration => json!({ "type": "string", "pattern": "^([0-9]+h)?([0-9]+m)?([0-9]+s)?$", "minLength": 2 }),
        Shape::Word(words) if *words == keys::TRUTH => json!({ "type": "boolean" }),
        Shape::Word(words) => json!({ "enum": words }),
        Shape::WholeLevels(low, high) => levels(&json!({ "type": "integer", "minimum": low, "maximum": high })),
        Shape::RateLevels => {
            levels(&json!({ "anyOf": [{ "type": "number", "exclusiveMinimum": 0 }, { "const": "inf" }] }))
        }
        Shape::Texts => list(&scalar()),
        Shape::Asked | Shape::TextOrTexts => json!({ "anyOf": [scalar(), list(&scalar())] }),
        Shape::Wholes => list(&json!({ "type": "integer", "minimum": 0 })),
        Shape::Table(table) => Value::Object(object(table)),
        Shape::Named(value) => {
            json!({ "type": "object", "additionalProperties": Value::Object(self::shape(value)) })
        }
        Shape::ArmValues => {
            json!({ "anyOf": [scalar(), list(&json!({ "anyOf": [scalar(), list(&scalar())] }))] })
        }
    };
    match schema {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_tables_is_a_property_and_no_other() {
        fn walk(table: &Table, schema: &Value) -> usize {
            let properties = schema["properties"].as_object().expect("properties");
            let names: Vec<&str> = table.keys.iter().map(|key| key.name).collect();
            assert_eq!(properties.keys().map(String::as_str).collect::<Vec<_>>(), names);
            assert_eq!(schema["additionalProperties"], false);
            let inner = |key: &Key| match &key.shape {
                Shape::Table(inner) => walk(inner, &properties[key.name]),
                Shape::Named(Shape::Table(inner)) => walk(inner, &properties[key.name]["additionalProperties"]),
                _ => 0,
            };
            names.len() + table.keys.iter().map(inner).sum::<usize>()
        }
        assert!(walk(&keys::SPEC, &spec()) > 60);
        assert_eq!(walk(&keys::LAB, &lab()), 1 + keys::HOST.keys.len());
    }

    #[test]
    fn the_schema_says_what_is_required_and_what_is_the_default() {
        let schema = spec();
        assert_eq!(schema["required"], json!(["title", "question", "server", "workload", "factor", "arms", "control"]));
        assert_eq!(schema["properties"]["repeats"]["maximum"], 1000);
        assert_eq!(schema["properties"]["repeats"]["description"], "number of blocks (default `5`)");
    }

    #[test]
    fn the_files_of_the_repository_are_current() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        for (name, schema) in [("experiment", spec()), ("labbook", lab())] {
            let text = std::fs::read_to_string(folder.join(format!("schema/{name}.json"))).expect("text");
            assert_eq!(text, format!("{schema:#}\n"), "`labbook schema` prints the current one");
        }
        let text = std::fs::read_to_string(folder.join("labbook.yaml")).expect("text");
        let (lab, _) = crate::spec::parse_lab(&crate::yaml::source("labbook.yaml", &text)).expect("a lab");
        assert!(lab.hosts.contains_key("blackwell"), "the host that cutedsl.yaml names");
    }
}
