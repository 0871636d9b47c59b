//! How large a value is as JSON.

use std::io;

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};

/// Approximate size of `value` as JSON, in bytes, without rendering it: each number counts as 8
/// bytes, and escapes do not count.
pub fn json_size(value: &impl Serialize) -> usize {
    let mut size = Size(0);
    // Plain data serializes, and a sink accepts everything.
    let _ = value.serialize(&mut Serializer::with_formatter(io::sink(), &mut size));
    size.0
}

/// Counts instead of writing.
struct Size(usize);

impl Size {
    fn add(&mut self, bytes: usize) -> io::Result<()> {
        self.0 = self.0.saturating_add(bytes);
        Ok(())
    }
}

type Written = io::Result<()>;

impl Formatter for &mut Size {
    fn write_null<W: ?Sized + io::Write>(&mut self, _: &mut W) -> Written {
        self.add(5)
    }

    fn write_bool<W: ?Sized + io::Write>(&mut self, _: &mut W, _: bool) -> Written {
        self.add(5)
    }

    fn write_u32<W: ?Sized + io::Write>(&mut self, _: &mut W, _: u32) -> Written {
        self.add(8)
    }

    fn write_u64<W: ?Sized + io::Write>(&mut self, _: &mut W, _: u64) -> Written {
        self.add(8)
    }

    fn write_i64<W: ?Sized + io::Write>(&mut self, _: &mut W, _: i64) -> Written {
        self.add(8)
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, _: &mut W, _: f64) -> Written {
        self.add(8)
    }

    fn begin_string<W: ?Sized + io::Write>(&mut self, _: &mut W) -> Written {
        self.add(2)
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, _: &mut W, text: &str) -> Written {
        self.add(text.len())
    }

    fn write_char_escape<W: ?Sized + io::Write>(&mut self, _: &mut W, _: CharEscape) -> Written {
        self.add(1)
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, _: &mut W) -> Written {
        self.add(2)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> Written {
        self.add(1)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, _: &mut W) -> Written {
        self.add(2)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> Written {
        self.add(2)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_part_of_a_value_counts() {
        for (value, size) in [
            (json!(null), 5),
            (json!(true), 5),
            (json!(1), 8),
            (json!(-1), 8),
            (json!(0.5), 8),
            (json!("a\n\"b"), 6),
            (json!([]), 2),
            (json!(["a", 1]), 2 + (3 + 1) + (8 + 1)),
            (json!({ "key": "a", "k": {} }), 2 + (3 + 3 + 4) + (1 + 2 + 4)),
        ] {
            assert_eq!(json_size(&value), size, "{value}");
        }
    }
}
