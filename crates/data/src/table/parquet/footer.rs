//! The footer of a file: its columns, its row groups and the positions of their chunks.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use super::thrift::{Field, Thrift};
use super::{Limits, ParquetFault};

const MAGIC: &[u8; 4] = b"PAR1";
/// Limit of the number of columns; no table of pictures comes near it.
const MOST_LEAVES: usize = 10_000;
/// Nesting limit of column groups.
const MOST_DEPTH: usize = 32;

#[derive(Clone, Debug, Default)]
pub(crate) struct Footer {
    pub(crate) leaves: Vec<Leaf>,
    pub(crate) row_groups: Vec<RowGroup>,
    /// Key-value metadata of the writer, such as `huggingface`.
    pub(crate) notes: Vec<(String, String)>,
}

/// Physical type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Physical {
    Boolean,
    Int32,
    Int64,
    Int96,
    Float,
    Double,
    Bytes,
    Fixed(usize),
}

/// A column that has values: a leaf of the tree of columns.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    /// Names of the enclosing groups, then its own name.
    pub(crate) path: Vec<String>,
    pub(crate) physical: Physical,
    /// Byte strings that are marked as text.
    pub(crate) is_text: bool,
    pub(crate) is_unsigned: bool,
    /// Definition level of a cell that is not null.
    pub(super) most_definition: u16,
    /// Number of lists around the value.
    pub(crate) most_repetition: u16,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct RowGroup {
    pub(crate) num_rows: u64,
    pub(super) chunks: Vec<Chunk>,
}

/// Position of the pages of one column in a row group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chunk {
    pub(super) codec: i64,
    pub(super) num_values: u64,
    pub(super) start: u64,
    pub(super) num_bytes: u64,
}

impl Footer {
    pub(super) fn read(
        file: &mut File,
        num_bytes: u64,
        limits: Limits,
    ) -> Result<Footer, ParquetFault> {
        let not_parquet = || ParquetFault::damaged("a file that is none, or one that is cut short");
        if num_bytes < 12 {
            return Err(not_parquet());
        }
        let mut end = [0; 8];
        file.seek(SeekFrom::Start(num_bytes - 8))?;
        file.read_exact(&mut end)?;
        let ([length @ .., _, _, _, _], magic) = (&end, &end[4..]);
        if magic == b"PARE" {
            return Err(ParquetFault::Unsupported("an encrypted one"));
        }
        let length: [u8; 4] = *length.first_chunk().ok_or_else(not_parquet)?;
        let length = u64::from(u32::from_le_bytes(length));
        if magic != MAGIC || length > num_bytes - 12 || length > limits.most_footer_bytes {
            return Err(not_parquet());
        }
        let mut bytes = vec![0; length as usize];
        file.seek(SeekFrom::Start(num_bytes - 8 - length))?;
        file.read_exact(&mut bytes)?;
        let footer = parse(&bytes)?;
        for chunk in footer.row_groups.iter().flat_map(|group| &group.chunks) {
            let end = chunk.start.checked_add(chunk.num_bytes);
            if end.is_none_or(|end| end > num_bytes) {
                return Err(ParquetFault::damaged(
                    "a column that lies outside of the file",
                ));
            }
        }
        Ok(footer)
    }

    /// Rows of all row groups.
    pub(crate) fn num_rows(&self) -> u64 {
        let rows = self.row_groups.iter().map(|group| group.num_rows);
        rows.fold(0, u64::saturating_add)
    }
}

fn parse(bytes: &[u8]) -> Result<Footer, ParquetFault> {
    let mut footer = Footer::default();
    let mut elements: Vec<Element> = Vec::new();
    Thrift::new(bytes).fields(|thrift, field| {
        match field.number {
            2 => thrift.list(field, |thrift, _| {
                elements.push(Element::read(thrift)?);
                Ok(())
            })?,
            4 => thrift.list(field, |thrift, _| {
                footer.row_groups.push(row_group(thrift)?);
                Ok(())
            })?,
            5 => thrift.list(field, |thrift, _| {
                let (mut key, mut value) = (String::new(), String::new());
                thrift.fields(|thrift, field| {
                    match field.number {
                        1 => key = thrift.text()?,
                        2 => value = thrift.text()?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                footer.notes.push((key, value));
                Ok(())
            })?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let mut elements = elements.into_iter();
    let root = elements
        .next()
        .ok_or_else(|| ParquetFault::damaged("no columns"))?;
    let mut path = Vec::new();
    for _ in 0..root.num_children.unwrap_or(0) {
        add_leaves(&mut elements, &mut path, (0, 0), &mut footer.leaves)?;
    }
    let num_leaves = footer.leaves.len();
    let is_whole = |group: &RowGroup| group.chunks.len() == num_leaves;
    if num_leaves > 0 && footer.row_groups.iter().all(is_whole) {
        Ok(footer)
    } else {
        Err(ParquetFault::damaged("row groups of other columns"))
    }
}

/// A node of the tree of columns.
#[derive(Default)]
struct Element {
    kind: Option<i64>,
    length: i64,
    repetition: i64,
    name: String,
    num_children: Option<i64>,
    converted: Option<i64>,
    logical: Option<i32>,
}

impl Element {
    fn read(thrift: &mut Thrift<'_>) -> Result<Element, ParquetFault> {
        let mut element = Element::default();
        thrift.fields(|thrift, field: Field| {
            match field.number {
                1 => element.kind = Some(thrift.number(field)?),
                2 => element.length = thrift.number(field)?,
                3 => element.repetition = thrift.number(field)?,
                4 => element.name = thrift.text()?,
                5 => element.num_children = Some(thrift.number(field)?),
                6 => element.converted = Some(thrift.number(field)?),
                10 => thrift.fields(|_, kind| {
                    element.logical = Some(kind.number);
                    Ok(false)
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(element)
    }

    /// Whether the logical type is UTF-8, an enumeration or JSON.
    fn is_text(&self) -> bool {
        matches!(self.converted, Some(0 | 4 | 19)) || matches!(self.logical, Some(1 | 4 | 12))
    }
}

/// Appends the leaves of the next element and of its children.
fn add_leaves(
    elements: &mut impl Iterator<Item = Element>,
    path: &mut Vec<String>,
    (definition, repetition): (u16, u16),
    leaves: &mut Vec<Leaf>,
) -> Result<(), ParquetFault> {
    let cut_short = || ParquetFault::damaged("columns that are cut short");
    let element = elements.next().ok_or_else(cut_short)?;
    if path.len() >= MOST_DEPTH || leaves.len() >= MOST_LEAVES {
        return Err(ParquetFault::damaged("columns without end"));
    }
    let (definition, repetition) = match element.repetition {
        0 => (definition, repetition),
        1 => (definition + 1, repetition),
        _ => (definition + 1, repetition + 1),
    };
    path.push(element.name.clone());
    if let Some(num_children) = element.num_children.filter(|children| *children > 0) {
        for _ in 0..num_children {
            add_leaves(elements, path, (definition, repetition), leaves)?;
        }
    } else {
        let physical = match element.kind {
            Some(0) => Physical::Boolean,
            Some(1) => Physical::Int32,
            Some(2) => Physical::Int64,
            Some(3) => Physical::Int96,
            Some(4) => Physical::Float,
            Some(5) => Physical::Double,
            Some(6) => Physical::Bytes,
            Some(7) => match usize::try_from(element.length) {
                Ok(length @ 1..) => Physical::Fixed(length),
                _ => return Err(ParquetFault::damaged("values of no length")),
            },
            _ => return Err(ParquetFault::damaged("a column of an unknown type")),
        };
        leaves.push(Leaf {
            path: path.clone(),
            physical,
            is_text: element.is_text(),
            is_unsigned: matches!(element.converted, Some(11..=14)),
            most_definition: definition,
            most_repetition: repetition,
        });
    }
    path.pop();
    Ok(())
}

fn row_group(thrift: &mut Thrift<'_>) -> Result<RowGroup, ParquetFault> {
    let mut group = RowGroup::default();
    thrift.fields(|thrift, field| {
        match field.number {
            1 => thrift.list(field, |thrift, _| {
                group.chunks.push(chunk(thrift)?);
                Ok(())
            })?,
            3 => group.num_rows = positive(thrift.number(field)?)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(group)
}

fn chunk(thrift: &mut Thrift<'_>) -> Result<Chunk, ParquetFault> {
    let mut chunk = Chunk::default();
    let mut is_elsewhere = false;
    let (mut data, mut dictionary) = (0, None);
    thrift.fields(|thrift, field| {
        match field.number {
            1 => is_elsewhere = !thrift.binary()?.is_empty(),
            3 => thrift.fields(|thrift, field| {
                match field.number {
                    4 => chunk.codec = thrift.number(field)?,
                    5 => chunk.num_values = positive(thrift.number(field)?)?,
                    7 => chunk.num_bytes = positive(thrift.number(field)?)?,
                    9 => data = positive(thrift.number(field)?)?,
                    11 => dictionary = Some(positive(thrift.number(field)?)?),
                    _ => return Ok(false),
                }
                Ok(true)
            })?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if is_elsewhere {
        return Err(ParquetFault::Unsupported("columns in other files"));
    }
    // Some writers store 0 where there is no dictionary.
    let dictionary = dictionary.filter(|start| *start > 0);
    chunk.start = dictionary.map_or(data, |start| start.min(data));
    Ok(chunk)
}

fn positive(number: i64) -> Result<u64, ParquetFault> {
    u64::try_from(number).map_err(|_| ParquetFault::damaged("a negative length"))
}
