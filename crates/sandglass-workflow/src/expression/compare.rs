//! Comparisons of JSON values.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// Whether two values are equal: numbers by their numeric value (1 equals 1.0), everything else as in
/// JSON. It takes time in proportion to the smaller of the two, and does not recurse.
pub(super) fn same(left: &Value, right: &Value) -> bool {
    let mut pairs = vec![(left, right)];
    while let Some((left, right)) = pairs.pop() {
        let equal = match (left, right) {
            (Value::Number(left), Value::Number(right)) => {
                numbers(left, right).is_some_and(Ordering::is_eq)
            }
            (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
                pairs.extend(left.iter().zip(right));
                true
            }
            (Value::Object(left), Value::Object(right)) if left.len() == right.len() => {
                left.iter().all(|(key, value)| {
                    right.get(key).map(|other| pairs.push((value, other))).is_some()
                })
            }
            (Value::Array(_) | Value::Object(_), _) => false,
            (left, right) => left == right,
        };
        if !equal {
            return false;
        }
    }
    true
}

/// The order of two numbers or two texts; other values have none.
pub(super) fn order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => numbers(left, right),
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

/// Whether `whole` contains `part`: a text contains texts, a list its items, an object its keys.
pub(super) fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::String(whole), Value::String(part)) => whole.contains(part.as_str()),
        (Value::Array(items), part) => items.iter().any(|item| same(item, part)),
        (Value::Object(fields), Value::String(key)) => fields.contains_key(key),
        _ => false,
    }
}

fn numbers(left: &Number, right: &Number) -> Option<Ordering> {
    match (left.as_i128(), right.as_i128()) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_the_same_by_their_value() {
        for (left, right, equal) in [
            (json!(1), json!(1.0), true),
            (json!(u64::MAX), json!(u64::MAX), true),
            (json!(u64::MAX), json!(u64::MAX - 1), false),
            (json!(-1), json!(u64::MAX), false),
            (json!("1"), json!(1), false),
            (json!(null), json!(false), false),
            (json!([1, {"a": [2]}]), json!([1.0, {"a": [2]}]), true),
            (json!([1, 2]), json!([2, 1]), false),
            (json!([1]), json!([1, 1]), false),
            (json!({"a": 1, "b": 2}), json!({"b": 2, "a": 1}), true),
            (json!({"a": null}), json!({"b": null}), false),
            (json!([]), json!({}), false),
        ] {
            assert_eq!(same(&left, &right), equal, "{left} {right}");
            assert_eq!(same(&right, &left), equal, "{left} {right}");
        }
    }

    #[test]
    fn numbers_and_texts_have_an_order() {
        assert_eq!(order(&json!(-1), &json!(u64::MAX)), Some(Ordering::Less));
        assert_eq!(order(&json!(2.5), &json!(2)), Some(Ordering::Greater));
        assert_eq!(order(&json!("b"), &json!("a")), Some(Ordering::Greater));
        assert_eq!(order(&json!("1"), &json!(1)), None);
        assert_eq!(order(&json!(true), &json!(false)), None);
    }

    #[test]
    fn texts_lists_and_objects_contain() {
        for (whole, part, is) in [
            (json!("a needle"), json!("need"), true),
            (json!("a"), json!(""), true),
            (json!([1, [2]]), json!([2.0]), true),
            (json!([1, [2]]), json!(2), false),
            (json!({"key": 1}), json!("key"), true),
            (json!({"key": 1}), json!(1), false),
            (json!(12), json!(1), false),
        ] {
            assert_eq!(contains(&whole, &part), is, "{whole} {part}");
        }
    }
}
