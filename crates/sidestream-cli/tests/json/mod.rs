//! What the command writes with `--json`.

use serde_json::Value;

/// The keys of an object, in their sequence.
#[track_caller]
pub fn keys(object: &Value) -> Vec<&str> {
    let object = object.as_object().expect("an object");
    object.keys().map(String::as_str).collect()
}
