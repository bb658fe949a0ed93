//! The output of the command with `--json`.

use serde_json::Value;

/// Returns the keys of an object, in order.
#[track_caller]
pub fn keys(object: &Value) -> Vec<&str> {
    let object = object.as_object().expect("an object");
    object.keys().map(String::as_str).collect()
}
