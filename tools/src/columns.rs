//! Lines of CSV, whose columns have names.

use csv_core::{ReadRecordResult, Reader};

/// The columns of a CSV file, and the values of one line.
#[derive(Debug)]
pub(crate) struct Columns {
    // `None` until the header is read.
    names: Option<Vec<String>>,
    // Made once, because its tables take ten times as long as a line.
    reader: Box<Reader>,
    text: Vec<u8>,
    // The end of each value.
    ends: Vec<usize>,
}

impl Columns {
    /// Columns with these names, or those of the first line.
    pub(crate) fn new(names: Option<Vec<String>>) -> Self {
        Self { names, reader: Box::new(Reader::new()), text: Vec::new(), ends: Vec::new() }
    }

    /// The names, once they are known.
    pub(crate) fn names(&self) -> &[String] {
        self.names.as_deref().unwrap_or_default()
    }

    /// The value of a column in the line that was read last, unless it is empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let index = self.names().iter().position(|column| column == name)?;
        Some(self.value(index)).filter(|value| !value.is_empty())
    }

    /// Reads a line; `false` for the header.
    pub(crate) fn read(&mut self, line: &str) -> Result<bool, String> {
        // A value has at most as many bytes as the line, and values are separated by a byte each.
        self.text.resize(line.len() + 1, 0);
        self.ends.resize(line.len() + 2, 0);
        let reader = &mut self.reader;
        reader.reset();
        let (result, used, _, values) = reader.read_record(line.as_bytes(), &mut self.text, &mut self.ends);
        let values = match result {
            ReadRecordResult::Record => values,
            // The end of the line is the end of the record, unless a quote is open.
            ReadRecordResult::InputEmpty if used == line.len() => {
                let text_used = self.ends[..values].last().copied().unwrap_or_default();
                let quotes = line.bytes().filter(|byte| *byte == b'"').count();
                if quotes % 2 == 1 {
                    return Err("a quote is not closed in its line".to_owned());
                }
                let (_, _, _, last) =
                    reader.read_record(&[], &mut self.text[text_used..], &mut self.ends[values..]);
                values + last
            }
            ReadRecordResult::InputEmpty
            | ReadRecordResult::OutputFull
            | ReadRecordResult::OutputEndsFull
            | ReadRecordResult::End => return Err("the line is not CSV".to_owned()),
        };
        self.ends.truncate(values);
        match &self.names {
            None => {
                self.names = Some((0..values).map(|index| self.value(index).trim().to_owned()).collect());
                Ok(false)
            }
            Some(names) if names.len() == values => Ok(true),
            Some(names) => {
                Err(format!("another number of columns than the header: {values}, not {}", names.len()))
            }
        }
    }

    fn value(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        std::str::from_utf8(&self.text[start..self.ends[index]]).unwrap_or_default()
    }
}
