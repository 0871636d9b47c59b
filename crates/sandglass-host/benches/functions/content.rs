//! Texts of a given length, each costly in a different way.

use std::fmt::Write as _;

/// The address of a guest's text in its memory.
pub(crate) const AT: u32 = 1 << 16;

/// The kind of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Letters,
    Zeros,
    NotUtf8,
    Lines,
    JsonString,
    JsonEscapes,
    JsonNumbers,
    JsonNested,
    JsonKeys,
    JsonRecord,
    /// This many pairs of an address and a length, all in the text that follows them.
    Buffers(u32),
}

impl Content {
    pub(crate) const OF_TEXTS: [Self; 10] = [
        Self::Letters,
        Self::Zeros,
        Self::NotUtf8,
        Self::Lines,
        Self::JsonString,
        Self::JsonEscapes,
        Self::JsonNumbers,
        Self::JsonNested,
        Self::JsonKeys,
        Self::JsonRecord,
    ];

    pub(crate) fn about(self) -> String {
        match self {
            Self::Buffers(count) => format!("{count} buffers"),
            Self::NotUtf8 => "bytes that are not UTF-8".to_owned(),
            Self::JsonString => "a string of JSON".to_owned(),
            Self::JsonEscapes => "escapes of JSON".to_owned(),
            Self::JsonNumbers => "numbers of JSON".to_owned(),
            Self::JsonNested => "nested JSON".to_owned(),
            Self::JsonKeys => "keys of JSON".to_owned(),
            Self::JsonRecord => "a record with keys of JSON".to_owned(),
            Self::Letters | Self::Zeros | Self::Lines => format!("{self:?}").to_lowercase(),
        }
    }

    /// A text of `length` bytes.
    pub(crate) fn bytes(self, length: usize) -> Vec<u8> {
        match self {
            Self::Letters => vec![b'a'; length],
            Self::Zeros => vec![0; length],
            Self::NotUtf8 => vec![0xff; length],
            Self::Lines => vec![b'\n'; length],
            Self::JsonString => framed("\"", |_| "a".to_owned(), "\"", length),
            Self::JsonEscapes => framed("\"", |_| "\\u0001".to_owned(), "\"", length),
            Self::JsonNumbers => framed("[1", |_| ",1".to_owned(), "]", length),
            Self::JsonNested => {
                let depth = (length / 2).min(100);
                framed(
                    "[",
                    |_| format!("{}{},", "[".repeat(depth), "]".repeat(depth)),
                    "1]",
                    length,
                )
            }
            Self::JsonKeys => framed("{", key, "\"z\":1}", length),
            Self::JsonRecord => {
                // The form of metrics, spans, events and log lines, with all their keys.
                let each = length.saturating_sub(200) / 4;
                let keys =
                    String::from_utf8(framed("{", key, "\"z\":1}", each)).expect("it is text");
                let mut record =
                    "{\"name\":\"n\",\"kind\":\"counter\",\"value\":1,\"level\":\"info\",\
                     \"message\":\"m\",\"event\":\"e\""
                        .to_owned();
                for name in ["fields", "attributes", "labels"] {
                    write!(record, ",\"{name}\":{keys}").expect("writing to a String cannot fail");
                }
                record.push('}');
                padded(record.into_bytes(), length)
            }
            Self::Buffers(count) => {
                let each = u32::try_from(length).expect("few").saturating_sub(8 * count) / count;
                let start = AT + 8 * count;
                let pairs = (0..count).flat_map(|_| [start, each].map(u32::to_le_bytes));
                padded(pairs.flatten().collect(), length)
            }
        }
    }
}

fn key(number: usize) -> String {
    format!("\"k{number}\":1,")
}

/// `begin`, as many of `unit` as fit, and `end`.
fn framed(begin: &str, unit: impl Fn(usize) -> String, end: &str, length: usize) -> Vec<u8> {
    let mut text = begin.to_owned();
    for number in 0.. {
        let unit = unit(number);
        if text.len() + unit.len() + end.len() > length {
            break;
        }
        text.push_str(&unit);
    }
    text.push_str(end);
    padded(text.into_bytes(), length)
}

fn padded(mut text: Vec<u8>, length: usize) -> Vec<u8> {
    text.resize(length.max(text.len()), b' ');
    text
}
