//! The snapshots of a part of a log, for its replay.

use sandglass_journal::Error;
use sandglass_model::{EntityRef, Partition, Position};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::link::Parameter;
use crate::row::key;

impl Database {
    /// The entities of a partition whose snapshots are of positions from `first` to `last`, in that
    /// order: at most as many as there are positions.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn snapshots(
        &self,
        partition: Partition,
        first: Position,
        last: Position,
    ) -> Result<Vec<EntityRef>, Error> {
        let sql = "SELECT e.type, e.id FROM sandglass.records r \
             JOIN sandglass.snapshots s ON s.partition = r.partition AND s.entity = r.entity \
               AND s.position = r.position \
             JOIN sandglass.entities e ON e.partition = r.partition AND e.entity = r.entity \
             WHERE r.partition = $1 AND r.position BETWEEN $2 AND $3 ORDER BY r.position";
        let number = i16::from(partition.number());
        let (first, last) = (key(first), key(last));
        let parameters: [Parameter<'_>; 3] =
            [(&number, Type::INT2), (&first, Type::INT8), (&last, Type::INT8)];
        let rows = self.reader().query(sql, &parameters).await?;
        let name = |row: &Row| -> Option<EntityRef> {
            EntityRef::new(row.try_get::<_, &str>(0).ok()?, row.try_get::<_, &str>(1).ok()?).ok()
        };
        Ok(rows.iter().filter_map(name).collect())
    }
}
