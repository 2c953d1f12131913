//! The table of `compare.csv` with a type for each column, for data frames and databases.
//!
//! Names and their order are those of the CSV. Counts are INT64, other numbers DOUBLE, yes or no is
//! BOOLEAN, and the rest is UTF-8; what is not known is null. Text is not guarded against
//! spreadsheets: nothing reads a cell of Parquet as a formula.

use std::{borrow::Cow, sync::Arc};

use ::parquet::{
    basic::{LogicalType, Repetition, Type as Physical},
    data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type},
    errors::{ParquetError, Result},
    file::writer::{SerializedColumnWriter, SerializedFileWriter},
    schema::types::{Type, TypePtr},
};
use tprimat_figures::Comparison;

use super::{
    columns::{Cell, Columns, Kind},
    csv::cells,
    sheet::clean,
};

/// A row a cell; `masked` takes the secrets out of a text.
///
/// # Errors
/// Where a count is too large for the format.
pub fn parquet(
    comparison: &Comparison,
    masked: fn(&str) -> Cow<'_, str>,
) -> std::result::Result<Vec<u8>, String> {
    written(&cells(comparison), masked).map_err(|why| why.to_string())
}

fn written(columns: &Columns, masked: fn(&str) -> Cow<'_, str>) -> Result<Vec<u8>> {
    let text = |text: &str| masked(&clean(text)).into_owned();
    let fields = columns
        .each()
        .map(|(name, kind, _)| field(&text(name), kind));
    let schema = Type::group_type_builder("compare")
        .with_fields(fields.collect::<Result<_>>()?)
        .build()?;
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::default())?;
    let mut rows = writer.next_row_group()?;
    for (name, kind, cells) in columns.each() {
        let mut column = rows
            .next_column()?
            .ok_or_else(|| ParquetError::General(format!("{name} has no column")))?;
        let too_large = |_| {
            ParquetError::General(format!(
                "a count in the column {name} is too large for INT64"
            ))
        };
        match kind {
            Kind::Text => put::<ByteArrayType>(&mut column, &cells, |cell| match cell {
                Cell::Text(value) => Ok(Some(ByteArray::from(text(value).into_bytes()))),
                _ => Ok(None),
            }),
            Kind::Number => put::<DoubleType>(&mut column, &cells, |cell| match cell {
                Cell::Number(number) => Ok(Some(*number)),
                _ => Ok(None),
            }),
            Kind::Count => put::<Int64Type>(&mut column, &cells, |cell| match cell {
                Cell::Count(count) => i64::try_from(*count).map(Some).map_err(too_large),
                _ => Ok(None),
            }),
            Kind::Flag => put::<BoolType>(&mut column, &cells, |cell| match cell {
                Cell::Flag(is_so) => Ok(Some(*is_so)),
                _ => Ok(None),
            }),
        }?;
        column.close()?;
    }
    rows.close()?;
    writer.into_inner()
}

fn field(name: &str, kind: Kind) -> Result<TypePtr> {
    let (physical, logical) = match kind {
        Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Kind::Number => (Physical::DOUBLE, None),
        Kind::Count => (Physical::INT64, None),
        Kind::Flag => (Physical::BOOLEAN, None),
    };
    Type::primitive_type_builder(name, physical)
        .with_logical_type(logical)
        .with_repetition(Repetition::OPTIONAL)
        .build()
        .map(Arc::new)
}

/// The values that are there, and for each row whether it has one.
fn put<T: DataType>(
    column: &mut SerializedColumnWriter<'_>,
    cells: &[Option<&Cell>],
    value: impl Fn(&Cell) -> Result<Option<T::T>>,
) -> Result<()> {
    let (mut values, mut is_there) = (Vec::new(), Vec::new());
    for cell in cells {
        let value = cell.map(&value).transpose()?.flatten();
        is_there.push(i16::from(value.is_some()));
        values.extend(value);
    }
    column
        .typed::<T>()
        .write_batch(&values, Some(&is_there), None)?;
    Ok(())
}
