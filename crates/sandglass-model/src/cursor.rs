//! A place in the records of a store: one position, or one for each partition.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Position;
use crate::partition::Partition;

/// For each partition of a store, the position of the last record that a reader has received.
///
/// As text, the cursor of a store with one journal is its position as a decimal number. With several
/// partitions it is `p` and, in URL-safe base64 without padding, the positions in the order of the
/// partitions, each as a variable-length integer of 7 bits per byte, the lowest bits first (LEB128).
/// Clients do not have to interpret it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(Box<[Position]>);

/// First character of the text of a cursor with several positions.
const SEVERAL: char = 'p';
/// Most bytes of the text of a cursor: each position takes at most ten bytes, and base64 adds a third.
pub const CURSOR_MAX_BYTES: usize = 1 + (Partition::COUNT as usize * 10).div_ceil(3) * 4;

/// A text that is not a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a position of events: use the `id` of an event as it was received, or 0 for all events"
)]
pub struct InvalidCursor;

impl Cursor {
    /// The start of a store with `journals` journals: 1, or [`Partition::COUNT`].
    #[must_use]
    pub fn start(journals: usize) -> Self {
        Self(vec![Position(0); journals.max(1)].into())
    }

    /// The cursor with these positions, in the order of their partitions.
    #[must_use]
    pub fn new(positions: impl IntoIterator<Item = Position>) -> Self {
        Self(positions.into_iter().collect())
    }

    /// The positions in the order of the partitions; one if the store is not partitioned.
    #[must_use]
    pub fn positions(&self) -> &[Position] {
        &self.0
    }

    /// The position in the journal of this index.
    #[must_use]
    pub fn at(&self, journal: usize) -> Position {
        self.0.get(journal).copied().unwrap_or_default()
    }

    /// Moves on to `position` in the journal of this index. Cursors never move back.
    pub fn advance(&mut self, journal: usize, position: Position) {
        if let Some(at) = self.0.get_mut(journal) {
            *at = position.max(*at);
        }
    }

    /// Whether it is of the same store layout as `other`, and behind `other` in no journal.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().zip(&other.0).all(|(own, other)| own <= other)
    }

    /// The first partition in which it is behind the end of `other`, with both positions.
    #[must_use]
    pub fn first_beyond(&self, other: &Self) -> Option<(Partition, Position, Position)> {
        Partition::all()
            .zip(self.0.iter().zip(&other.0))
            .find(|(_, (own, other))| own > other)
            .map(|(partition, (own, other))| (partition, *own, *other))
    }
}

impl From<Position> for Cursor {
    fn from(position: Position) -> Self {
        Self([position].into())
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [position] = &*self.0 {
            return position.fmt(f);
        }
        let mut bytes = Vec::with_capacity(self.0.len() * 3);
        for Position(position) in &self.0 {
            let mut left = *position;
            loop {
                let [low, ..] = left.to_le_bytes();
                left >>= 7;
                if left == 0 {
                    bytes.push(low);
                    break;
                }
                bytes.push(low | 0x80);
            }
        }
        write!(f, "{SEVERAL}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let Some(several) = text.strip_prefix(SEVERAL) else {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            let position = text.parse().ok().filter(|_| is_number);
            return position.map(|position| Position(position).into()).ok_or(InvalidCursor);
        };
        if text.len() > CURSOR_MAX_BYTES {
            return Err(InvalidCursor);
        }
        let bytes = URL_SAFE_NO_PAD.decode(several).map_err(|_| InvalidCursor)?;
        let mut positions = Vec::with_capacity(Partition::COUNT.into());
        let mut bytes = bytes.into_iter();
        while bytes.len() > 0 {
            positions.push(Position(read_varint(&mut bytes)?));
        }
        if positions.len() != usize::from(Partition::COUNT) {
            return Err(InvalidCursor);
        }
        Ok(Self(positions.into()))
    }
}

/// The next integer, in its only valid form: without a superfluous last byte of zero.
fn read_varint(bytes: &mut impl Iterator<Item = u8>) -> Result<u64, InvalidCursor> {
    let mut value = 0u64;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = bytes.next().ok_or(InvalidCursor)?;
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << shift;
        if shifted >> shift != bits {
            return Err(InvalidCursor);
        }
        value |= shifted;
        if byte < 0x80 {
            return if byte == 0 && shift > 0 { Err(InvalidCursor) } else { Ok(value) };
        }
    }
    Err(InvalidCursor)
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn several(position: impl Fn(u64) -> u64) -> Cursor {
        Cursor::new((0..u64::from(Partition::COUNT)).map(|number| Position(position(number))))
    }

    #[test]
    fn one_position_is_a_number() {
        let cursor = Cursor::from(Position(1_234));
        assert_eq!(cursor.to_string(), "1234");
        assert_eq!("1234".parse(), Ok(cursor));
    }

    #[test]
    fn several_positions_come_back() {
        for cursor in [
            several(|_| 0),
            several(|number| number * 1_000),
            several(|number| u64::MAX >> number),
            several(|_| u64::MAX),
        ] {
            let text = cursor.to_string();
            assert!(text.len() <= CURSOR_MAX_BYTES, "{}", text.len());
            assert_eq!(text.parse(), Ok(cursor));
        }
        assert_eq!(several(|_| 0).to_string().len(), 1 + 86);
    }

    #[test]
    fn other_texts_are_refused() {
        let good = several(|number| number * 300).to_string();
        let cut = &good[..good.len() - 1];
        let long = format!("{good}AA");
        for text in ["", "-1", "+1", "1.5", "18446744073709551616", "p", "p!", "q0", cut, &long] {
            assert_eq!(text.parse::<Cursor>(), Err(InvalidCursor), "{text}");
        }
        // 64 positions, of which the first one is written with a superfluous byte.
        let mut bytes = vec![0u8; 65];
        bytes[0] = 0x80;
        let superfluous = format!("p{}", URL_SAFE_NO_PAD.encode(bytes));
        assert_eq!(superfluous.parse::<Cursor>(), Err(InvalidCursor));
    }

    #[test]
    fn a_cursor_never_moves_back() {
        let mut cursor = several(|_| 5);
        cursor.advance(3, Position(7));
        cursor.advance(3, Position(6));
        cursor.advance(900, Position(8));
        assert_eq!((cursor.at(3), cursor.at(4)), (Position(7), Position(5)));
        assert!(several(|_| 5).is_within(&cursor) && !cursor.is_within(&several(|_| 6)));
        let beyond = cursor.first_beyond(&several(|_| 6)).map(|(at, ..)| at.number());
        assert_eq!(beyond, Some(3));
    }
}
